// Multi-domain congestion control for the kernel's TCP. See docs/design/kernel-tcp.md.
//
// Three kinds of programs share what is known of a connection: one on the device finds PEP-ACKs, one sees
// which segments are sent again, and the congestion control itself runs at each acknowledgement.
#include "kernel.h"

#include <bpf/bpf_helpers.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

#include "sha256.h"

#include "connection.h"

#include "access_model.h"
#include "fair_window.h"
#include "pep_ack.h"

#define INITIAL_WINDOW (10 * PACKET) // RFC 6928
#define HEARD_AGAIN 10               // PEP-ACKs after a silence until it counts as over
#define PEP_RTT_MIN_US 3000          // a PEP collects packets for a millisecond
#define SLOW_START_DELAY_US 4000

char LICENSE[] SEC("license") = "Dual MIT/GPL";

// What PEP-ACKs have told, as it was at one moment.
struct told {
    __u64 heard_ns;
    __u32 heard, highest, missing, pep_rtt_us, probe_us;
};

static __always_inline __u32 overlap(struct range a, struct range b)
{
    __u32 start = before(a.start, b.start) ? b.start : a.start;
    __u32 end = before(a.end, b.end) ? a.end : b.end;

    return before(start, end) ? end - start : 0;
}

// Reads what was told, with the bytes of a range that have not passed the PEP.
static __always_inline struct told read_told(struct connection *c, struct range range)
{
    struct told told = {};

    bpf_spin_lock(&c->lock);
    told.heard_ns = c->heard_ns;
    told.heard = c->heard;
    told.highest = c->highest;
    told.pep_rtt_us = c->pep_rtt_us;
    told.probe_us = c->probe_us;
    for (__u32 i = 0; i < HOLES_MAX; i++)
        if (i < c->holes_len)
            told.missing += overlap(range, c->holes[i]);
    bpf_spin_unlock(&c->lock);
    if (before(told.highest, range.end))
        told.missing += range.end - (before(told.highest, range.start) ? range.start : told.highest);
    return told;
}

static __always_inline __u32 in_flight(const struct tcp_sock *tp)
{
    return tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
}

// Changes what the fair window counts, at the same rate: windows are to each other as the RTTs are.
static __always_inline void change_domains(struct connection *c, const struct tcp_sock *tp, bool two)
{
    __u32 rtt_us = (tp->srtt_us >> 3) + 1, pep_rtt_us = min_of(c->pep_rtt_us, rtt_us);

    c->two_domains = two;
    c->untold_ns = 0;
    c->epoch_ns = 0;
    if (two) {
        if (c->window >= c->ssthresh)
            c->window = (__u64)c->window * pep_rtt_us / rtt_us;
        c->window = max_of(c->window, INITIAL_WINDOW);
        c->startup = 1;
        c->plateau = c->plateau_rate = 0;
    } else {
        __u64 window = (__u64)c->window * rtt_us / max_of(pep_rtt_us, 1);
        __u32 used = max_of(tp->snd_cwnd * PACKET, WINDOW_MIN);

        c->window = window < used ? window : used;
        c->ssthresh = c->window;
        c->heard_min = c->heard + HEARD_AGAIN;
    }
    c->window_max = c->window;
    count(two ? TO_TWO_DOMAINS : TO_ONE_DOMAIN, 1);
}

// Whether the PEP tells of what passes. It is silent if data has long been acknowledged of which it has not told, and
// two of its RTTs have passed since it spoke.
static __always_inline bool hears_pep(struct connection *c, const struct told *told, const struct tcp_sock *tp,
                                      __u64 now)
{
    __u64 pep_rtt_ns = max_of(told->pep_rtt_us ? told->pep_rtt_us : tp->srtt_us >> 3, PEP_RTT_MIN_US) * 1000ull;

    if (!c->two_domains)
        return told->heard > c->heard_min;
    if (!before(told->highest, tp->snd_una))
        c->untold_ns = 0;
    else if (!c->untold_ns)
        c->untold_ns = now;
    return !c->untold_ns || now - c->untold_ns < pep_rtt_ns || now - told->heard_ns < 2 * pep_rtt_ns;
}

SEC("struct_ops")
void BPF_PROG(mdcc_init, struct sock *sk)
{
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct connection *c = bpf_sk_storage_get(&connections, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

    if (sk->sk_pacing_status == SK_PACING_NONE)
        sk->sk_pacing_status = SK_PACING_NEEDED;
    if (!c)
        return; // it stays at its window
    c->highest = c->passed = tp->snd_una;
    c->window = max_of(tp->snd_cwnd * PACKET, INITIAL_WINDOW);
    c->ssthresh = NO_THRESHOLD;
    c->recover = tp->snd_nxt;
    c->startup = 1;
    c->round_delivered = c->round_start = tp->delivered;
    forget_empty(c, bpf_ktime_get_ns());
}

// Measures the RTT of the PEP with the newest segment. One that was sent twice would not say which of both has passed.
static __always_inline void start_probe(struct connection *c, const struct told *told,
                                        const struct tcp_sock *tp)
{
    const struct list_head *newest = tp->tsorted_sent_queue.prev;
    const struct sk_buff *skb = (const void *)newest - bpf_core_field_offset(struct sk_buff, tcp_tsorted_anchor);
    const struct tcp_skb_cb *cb = (const void *)skb->cb;

    if (newest == &tp->tsorted_sent_queue || BPF_CORE_READ(cb, sacked) & TCPCB_EVER_RETRANS)
        return;
    __u32 end = BPF_CORE_READ(cb, end_seq);

    if (!before(told->highest, end))
        return; // it has passed already
    c->probe = end;
    c->probe_us = 0;
    c->probe_ns = BPF_CORE_READ(skb, skb_mstamp_ns);
}

// What has arrived grows the fair window: at the PEP if there are two domains, at the receiver otherwise. Returns the
// packets that may be in flight.
static __always_inline __u32 two_domains(struct connection *c, const struct told *told, const struct tcp_sock *tp,
                                __u32 target_us, __u64 now)
{
    __u32 mss = max_of(tp->mss_cache, 1);
    __u32 to_pep = told->missing / mss, all = in_flight(tp);
    __u32 passed = tp->snd_nxt - told->missing; // counts all bytes that have passed, like a sequence number
    __u32 newly = before(c->passed, passed) ? (passed - c->passed) / mss : 0;
    __u32 used = (to_pep + newly + 1) * PACKET;

    c->passed += newly * mss;
    grow(c, newly, c->window < c->ssthresh ? 2 * used >= c->window : used >= c->window, max_of(told->pep_rtt_us, 1000), now);
    __u32 fair = c->window / PACKET + (all > to_pep ? all - to_pep : 0);

    return min_of(fair, access_limit(c, target_us));
}

static __always_inline __u32 one_domain(struct connection *c, const struct tcp_sock *tp, const struct rate_sample *rs, __u64 now)
{
    __u32 rtt_us = tp->srtt_us >> 3, empty_us = tp->rtt_min.s[0].v, used = (rs->prior_in_flight + 1) * PACKET;
    bool slow_start = c->window < c->ssthresh;

    // Slow start ends when a queue grows, as in HyStart (RFC 9406).
    if (slow_start && rs->rtt_us > (long)(empty_us + max_of(empty_us / 8, SLOW_START_DELAY_US)))
        c->ssthresh = c->window;
    grow(c, rs->acked_sacked, slow_start ? 2 * used >= c->window : used >= c->window, rtt_us, now);
    return c->window / PACKET;
}

SEC("struct_ops")
void BPF_PROG(mdcc_control, struct sock *sk, __u32 acknowledgement, int flag, const struct rate_sample *rs)
{
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct connection *c = bpf_sk_storage_get(&connections, sk, 0, 0);
    __u64 now = bpf_ktime_get_ns();
    __u32 zero = 0;
    struct config *settings = bpf_map_lookup_elem(&config, &zero);

    if (!c || !settings)
        return;
    struct range sent = {tp->snd_una, tp->snd_nxt};
    struct told told = read_told(c, sent);
    bool two = hears_pep(c, &told, tp, now);

    if (told.probe_us && rs->rtt_us > 0 && now - rs->rtt_us * 1000 >= c->probe_ns) {
        learn_access_rtt(c, told.probe_us, rs->rtt_us, settings->queue_target_us, now);
        c->probe_ns = 0;
    }
    if (!c->probe_ns)
        start_probe(c, &told, tp);
    if (two != c->two_domains) {
        c->passed = tp->snd_nxt - told.missing;
        change_domains(c, tp, two);
    }
    learn_rate(c, tp, rs, settings->queue_target_us, now);
    __u32 target = two ? two_domains(c, &told, tp, settings->queue_target_us, now) : one_domain(c, tp, rs, now);
    // Never more than slow start would add, so that there is no burst after a time-out.
    __u32 cwnd = min_of(target, max_of(tp->snd_cwnd, in_flight(tp)) + rs->acked_sacked);

    tp->snd_cwnd = max_of(cwnd, 4);
    // A little faster than a window in an RTT, as the kernel paces other congestion controls.
    bool doubles = two ? c->startup : c->window < c->ssthresh;
    __u64 percent = doubles ? 200 : 120;

    sk->sk_pacing_rate = tp->snd_cwnd * (__u64)tp->mss_cache * 10000 * percent / ((tp->srtt_us >> 3) + 1);
}

// A segment is sent again. If it is believed to be lost, where was it?
SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(mdcc_sent_again, const struct sock *sock, const struct sk_buff *skb)
{
    struct tcp_sock *tp = bpf_skc_to_tcp_sock((void *)sock);
    struct connection *c = tp ? bpf_sk_storage_get(&connections, tp, 0, 0) : 0;
    struct tcp_skb_cb segment = {};
    const struct tcp_skb_cb *cb = (const void *)skb->cb;

    if (!c)
        return 0;
    segment.seq = BPF_CORE_READ(cb, seq);
    segment.end_seq = BPF_CORE_READ(cb, end_seq);
    segment.sacked = BPF_CORE_READ(cb, sacked);
    if (!(segment.sacked & TCPCB_LOST) || segment.end_seq == segment.seq)
        return 0; // a probe for the loss of the last segments
    struct range range = {segment.seq, segment.end_seq};
    struct told told = read_told(c, range);
    __u32 mss = max_of(tp->mss_cache, 1);
    __u32 packets = (segment.end_seq - segment.seq + mss - 1) / mss, wired = (told.missing + mss - 1) / mss;

    wired = min_of(wired, packets); // holes may overlap if there are too many
    if (c->two_domains) {
        count(LOST_WIRED, wired);
        count(LOST_ACCESS, packets - wired);
        c->round_lost += packets - wired;
    } else {
        count(LOST_ONE_DOMAIN, packets);
    }
    if (!wired)
        expect_again(c, range);
    if ((wired || !c->two_domains) && !before(segment.seq, c->recover))
        reduce(c, tp->snd_nxt);
    return 0;
}

SEC("struct_ops")
void BPF_PROG(mdcc_set_state, struct sock *sk, __u8 new_state)
{
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct connection *c = bpf_sk_storage_get(&connections, sk, 0, 0);

    // A mark does not say where it was set, so it counts like a loss in the wired domain.
    if (c && new_state == TCP_CA_CWR)
        reduce(c, tp->snd_nxt);
}

SEC("struct_ops")
__u32 BPF_PROG(mdcc_ssthresh, struct sock *sk)
{
    return ((struct tcp_sock *)sk)->snd_cwnd; // the kernel itself reduces nothing
}

// The segments were only late.
SEC("struct_ops")
__u32 BPF_PROG(mdcc_undo_cwnd, struct sock *sk)
{
    struct connection *c = bpf_sk_storage_get(&connections, sk, 0, 0);

    if (c)
        c->window = max_of(c->window, c->window_undo);
    return ((struct tcp_sock *)sk)->snd_cwnd;
}

// Room to send while holes are filled, as BBR has it.
SEC("struct_ops")
__u32 BPF_PROG(mdcc_sndbuf_expand, struct sock *sk)
{
    return 3;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops tandem_mdcc = {
    .init = (void *)mdcc_init,
    .cong_control = (void *)mdcc_control,
    .ssthresh = (void *)mdcc_ssthresh,
    .set_state = (void *)mdcc_set_state,
    .undo_cwnd = (void *)mdcc_undo_cwnd,
    .sndbuf_expand = (void *)mdcc_sndbuf_expand,
    .flags = TCP_CONG_NON_RESTRICTED,
    .name = "tandem_mdcc",
};
