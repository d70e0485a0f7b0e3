// What is known of a connection and of all of them, and what the loader has set.
#pragma once

#define HOLES_MAX 8

// Sequence numbers from `start` to before `end`.
struct range {
    __u32 start, end;
};

// A connection that uses this congestion control. The first part is what PEP-ACKs have told; programs on several
// CPUs use it at the same time, so that it needs the lock. The second part is used under the lock of the socket.
struct connection {
    struct bpf_spin_lock lock;
    __u32 heard;                  // PEP-ACKs that were used
    __u32 sequence;               // number of the last one
    __u32 highest;                // end of the data that has passed the PEP
    __u32 holes_len;              // of `holes`
    struct range holes[HOLES_MAX]; // data before `highest` of which no PEP-ACK has told since it was last sent
    __u64 heard_ns;               // when the last PEP-ACK came
    __u32 probe;                  // end of a segment with which the RTT of the PEP is measured
    __u32 probe_us;               // how long it took until a PEP-ACK told of it; 0: none has
    __u64 probe_ns;               // when it was sent; 0: there is none
    __u32 pep_rtt_us; // smoothed time from sending to PEP-ACK; 0: unknown

    __u64 untold_ns;   // since when data is acknowledged of which no PEP-ACK has told; 0: there is none
    __u32 two_domains; // whether the control has two domains at the moment
    __u32 heard_min;   // PEP-ACKs that are needed until it has two
    __u32 recover;     // data that was sent when the fair window was reduced
    __u32 passed;      // how far data had passed the PEP at the last acknowledgement
    // The fair window (RFC 9438). Windows count packets of 1/1024.
    __u32 window, ssthresh, window_max, window_reno, window_undo;
    __u64 epoch_ns; // when its growth began; 0: it does not grow
    __u64 k_ms;     // when it will reach window_max
    // The model of the access domain.
    __u32 startup;         // whether the rate is still doubled in each round
    __u32 round_delivered; // a round ends when data that was sent after this is acknowledged
    __u32 round_start;     // what was delivered when it began
    __u32 round_lost;      // what was lost in it behind the PEP
    __u32 rounds;          // of this epoch
    __u32 plateau;         // rounds of the start in which the rate has not grown
    __u32 queued;          // rounds with a queue that should not be there
    __u32 drain;           // rounds until the queue has gone
    __u64 rate[2];         // highest delivery rate of this epoch and of the last one, in 2^-24 packets/us
    __u64 plateau_rate;
    __u32 access_us;   // smoothed RTT behind the PEP
    __u32 empty_us[2]; // shortest one of this epoch of 10 s and of the last one
    __u64 empty_epoch_ns;
};

struct {
    __uint(type, BPF_MAP_TYPE_SK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct connection);
} connections SEC(".maps");

struct config {
    __u32 pep;
    __u32 queue_target_us;
    struct hmac_key key;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct config);
} config SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct hash);
} scratch SEC(".maps");

// The loader prints these in this order.
enum counter {
    PEP_ACKS_USED,
    PEP_ACKS_WRONG_MAC,
    PEP_ACKS_OTHER_PEP,
    PEP_ACKS_REPLAYED,
    PEP_ACKS_IMPLAUSIBLE,
    PEP_ACKS_NO_CONNECTION,
    LOST_WIRED,
    LOST_ACCESS,
    LOST_ONE_DOMAIN,
    REDUCTIONS,
    ACCESS_OVERLOADS,
    TO_TWO_DOMAINS,
    TO_ONE_DOMAIN,
    COUNTERS
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(enum counter counter, __u64 more)
{
    __u32 index = counter;
    __u64 *value = bpf_map_lookup_elem(&counters, &index);

    if (value)
        __sync_fetch_and_add(value, more);
}

static __always_inline bool before(__u32 a, __u32 b)
{
    return (__s32)(a - b) < 0;
}

static __always_inline __u32 min_of(__u32 a, __u32 b)
{
    return a < b ? a : b;
}

static __always_inline __u32 max_of(__u32 a, __u32 b)
{
    return a > b ? a : b;
}
