// What the programs use of the kernel's types. The loader relocates each field to its place in the running
// kernel (CO-RE), so that only the names have to be right, and no header of a kernel is needed to build.
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0

#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_SK_STORAGE 24
#define BPF_F_NO_PREALLOC 1
#define BPF_SK_STORAGE_GET_F_CREATE 1
#define BPF_F_CURRENT_NETNS (-1)
#define BPF_HDR_START_NET 1
#define TCX_NEXT (-1) // the packet goes on
#define TCX_DROP 2

// Flags of segments.
#define TCPCB_LOST 0x04        // believed to be lost
#define TCPCB_EVER_RETRANS 0x80 // sent again

#define TCP_CA_CWR 2        // state after an ECN echo
#define TCP_CONG_NON_RESTRICTED 1 // all programs may choose it, as they may CUBIC
#define SK_PACING_NONE 0
#define SK_PACING_NEEDED 1

struct bpf_spin_lock {
    __u32 val;
};

// The context of programs on a device, from <linux/bpf.h>: up to the last field that is used.
struct __sk_buff {
    __u32 len, pkt_type, mark, queue_mapping, protocol;
};

// The public view of a socket, from <linux/bpf.h>.
struct bpf_tcp_sock {
    __u32 snd_cwnd, srtt_us, rtt_min, snd_ssthresh, rcv_nxt, snd_nxt, snd_una;
};
struct bpf_sock;
struct bpf_sock_tuple {
    union {
        struct {
            __be32 saddr, daddr;
            __be16 sport, dport;
        } ipv4;
        struct {
            __be32 saddr[4], daddr[4];
            __be16 sport, dport;
        } ipv6;
    };
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock {
    unsigned long sk_pacing_rate;
    __u32 sk_pacing_status;
};

struct minmax_sample {
    __u32 t, v;
};

struct minmax {
    struct minmax_sample s[3];
};

struct list_head {
    struct list_head *next, *prev;
};

struct tcp_sock {
    struct minmax rtt_min;
    struct list_head tsorted_sent_queue; // what is in flight, in the order in which it was sent
    __u32 snd_una, snd_nxt, snd_cwnd, snd_ssthresh;
    __u32 packets_out, sacked_out, lost_out, retrans_out;
    __u32 mss_cache, srtt_us, delivered;
};

struct rate_sample {
    __u32 prior_delivered, prior_in_flight, acked_sacked;
    __s32 delivered;
    long interval_us, rtt_us;
    bool is_app_limited;
};

struct sk_buff {
    char cb[48];
    __u64 skb_mstamp_ns; // when it was sent
    struct list_head tcp_tsorted_anchor;
};

struct tcp_skb_cb {
    __u32 seq, end_seq;
    __u8 sacked;
};

#pragma clang attribute pop

struct tcp_congestion_ops {
    __u32 (*ssthresh)(struct sock *sk);
    void (*set_state)(struct sock *sk, __u8 new_state);
    __u32 (*undo_cwnd)(struct sock *sk);
    __u32 (*sndbuf_expand)(struct sock *sk);
    void (*cong_control)(struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs);
    void (*init)(struct sock *sk);
    __u32 flags;
    char name[16];
};
