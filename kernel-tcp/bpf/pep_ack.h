// Finds PEP-ACKs among the packets that arrive (docs/design/wire.md, "For TCP"), and notes what they tell.
#pragma once

#define OPTION_KIND 253
#define OPTION_EXPERIMENT 0x5450
#define RANGES_MAX 2
#define OPTION_HEADER_LEN 16
#define MAC_LEN 8
#define TCP_LEN 20 // without options
#define IPPROTO_TCP 6
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

struct option {
    __u8 kind, len;
    __be16 experiment;
    __be32 pep, sequence, time;
    struct range ranges[RANGES_MAX]; // big-endian; the MAC takes the place of the second one if there is only one
    __u8 mac[MAC_LEN];
} __attribute__((packed));

struct pep_ack {
    struct bpf_sock_tuple ends;
    struct option option;
    __u32 ends_len; // of `ends`
    __u32 ranges;
};

// Parses a packet. Returns whether it is a PEP-ACK by its form: a segment without flags or with ACK alone, whose
// only option is that of PEP-ACKs, and without data.
static __always_inline bool parse(struct __sk_buff *skb, struct pep_ack *ack)
{
    __u8 ip[40 + TCP_LEN + 4], *tcp; // up to the first bytes of the option
    __u32 ip_len, packet_len;

    if (skb->protocol == bpf_htons(ETH_P_IP)) {
        ip_len = 20;
        if (bpf_skb_load_bytes_relative(skb, 0, ip, 20 + TCP_LEN + 4, BPF_HDR_START_NET))
            return false;
        if (ip[0] != 0x45 || ip[9] != IPPROTO_TCP)
            return false;
        packet_len = ip[2] << 8 | ip[3];
        tcp = ip + 20;
    } else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
        ip_len = 40;
        if (bpf_skb_load_bytes_relative(skb, 0, ip, 40 + TCP_LEN + 4, BPF_HDR_START_NET))
            return false;
        if (ip[6] != IPPROTO_TCP)
            return false;
        packet_len = 40 + (ip[4] << 8 | ip[5]);
        tcp = ip + 40;
    } else {
        return false;
    }
    __u32 option_len = (tcp[12] >> 4) * 4 - TCP_LEN;
    bool is_one = (tcp[13] == 0 || tcp[13] == 0x10) && tcp[20] == OPTION_KIND && tcp[21] == option_len &&
                  (tcp[22] << 8 | tcp[23]) == OPTION_EXPERIMENT &&
                  packet_len == ip_len + TCP_LEN + option_len;

    if (!is_one || (option_len != 32 && option_len != 40))
        return false;
    __builtin_memset(ack, 0, sizeof(*ack));
    ack->ranges = option_len == 40 ? 2 : 1;
    // Constant lengths, because the verifier follows them best.
    if (option_len == 40
            ? bpf_skb_load_bytes_relative(skb, ip_len + TCP_LEN, &ack->option, 40, BPF_HDR_START_NET)
            : bpf_skb_load_bytes_relative(skb, ip_len + TCP_LEN, &ack->option, 32, BPF_HDR_START_NET))
        return false;
    if (ip_len == 20) {
        __builtin_memcpy(&ack->ends.ipv4.saddr, ip + 12, 8);
        __builtin_memcpy(&ack->ends.ipv4.sport, tcp, 4);
        ack->ends_len = sizeof(ack->ends.ipv4);
    } else {
        __builtin_memcpy(&ack->ends.ipv6.saddr, ip + 8, 32);
        __builtin_memcpy(&ack->ends.ipv6.sport, tcp, 4);
        ack->ends_len = sizeof(ack->ends.ipv6);
    }
    return true;
}

// Whether the MAC is that of the PEP, for this connection.
static __always_inline bool is_authentic(const struct pep_ack *ack, const struct hmac_key *key)
{
    __u32 zero = 0, len = 0;
    struct hash *hash = bpf_map_lookup_elem(&scratch, &zero);

    if (!hash)
        return false;
    __u8 *message = hash->message;

    __builtin_memset(message, 0, MESSAGE_MAX);
#define ADD(part, part_len) (__builtin_memcpy(message + len, part, part_len), len += (part_len))
    if (ack->ends_len == sizeof(ack->ends.ipv4)) {
        ADD(&ack->ends.ipv4.saddr, 4), ADD(&ack->ends.ipv4.sport, 2);
        ADD(&ack->ends.ipv4.daddr, 4), ADD(&ack->ends.ipv4.dport, 2);
        ADD(&ack->option, OPTION_HEADER_LEN + 8);
        if (ack->ranges == 2)
            ADD(&ack->option.ranges[1], 8);
    } else {
        ADD(ack->ends.ipv6.saddr, 16), ADD(&ack->ends.ipv6.sport, 2);
        ADD(ack->ends.ipv6.daddr, 16), ADD(&ack->ends.ipv6.dport, 2);
        ADD(&ack->option, OPTION_HEADER_LEN + 8);
        if (ack->ranges == 2)
            ADD(&ack->option.ranges[1], 8);
    }
#undef ADD
    __u64 mac;

    __builtin_memcpy(&mac, ack->ranges == 2 ? ack->option.mac : (const __u8 *)&ack->option.ranges[1], 8);
    return bpf_be64_to_cpu(mac) == hmac_sha256(hash, key, len);
}

// Notes that there is a hole. If there are too many, the last one grows over the data between them, which then
// counts as not passed: the sender may be too careful, but never too bold.
static __always_inline void add_hole(struct connection *c, struct range hole)
{
    __u32 at = c->holes_len;

    if (at < HOLES_MAX) {
        c->holes[at] = hole;
        c->holes_len = at + 1;
        return;
    }
    struct range *last = &c->holes[HOLES_MAX - 1];

    if (before(hole.start, last->start))
        last->start = hole.start;
    if (before(last->end, hole.end))
        last->end = hole.end;
}

// Notes that a range which has passed the PEP was sent again, so that it can be lost before the PEP this time. Half of the
// places stay free for what has not passed at all.
static __always_inline void expect_again(struct connection *c, struct range range)
{
    bpf_spin_lock(&c->lock);
    if (c->holes_len < HOLES_MAX / 2 && !before(c->highest, range.end))
        add_hole(c, range);
    bpf_spin_unlock(&c->lock);
}

// Notes that a range has passed the PEP.
static __always_inline void note_range(struct connection *c, struct range passed, __u32 acknowledged)
{
    struct range behind = {}; // a part of a hole that has passed splits it
    __u32 kept = 0;

    for (__u32 i = 0; i < HOLES_MAX; i++) {
        if (i >= c->holes_len)
            break;
        struct range hole = c->holes[i];

        if (before(hole.start, acknowledged))
            hole.start = acknowledged;
        if (before(hole.start, passed.end) && before(passed.start, hole.end)) {
            if (before(hole.start, passed.start)) {
                if (before(passed.end, hole.end))
                    behind.start = passed.end, behind.end = hole.end;
                hole.end = passed.start;
            } else {
                hole.start = passed.end;
            }
        }
        if (before(hole.start, hole.end))
            c->holes[kept & (HOLES_MAX - 1)] = hole, kept++;
    }
    c->holes_len = kept;
    if (behind.start != behind.end)
        add_hole(c, behind);
    if (before(c->highest, acknowledged))
        c->highest = acknowledged;
    if (before(c->highest, passed.start)) {
        struct range hole = {c->highest, passed.start};

        add_hole(c, hole);
    }
    if (before(c->highest, passed.end))
        c->highest = passed.end;
}

static __always_inline struct range range_of(const struct range *bytes)
{
    struct range range = {bpf_ntohl(bytes->start), bpf_ntohl(bytes->end)};

    return range;
}

// Whether a range is one that this connection can have sent and not forgotten.
static __always_inline bool is_plausible(struct range range, const struct bpf_tcp_sock *tp)
{
    return !before(range.end, range.start) && !before(tp->snd_nxt, range.end);
}

// Checks an authentic or forged PEP-ACK of a connection, from the cheapest check to the dearest one.
static __always_inline enum counter use(struct connection *c, const struct pep_ack *ack, const struct bpf_tcp_sock *tp)
{
    __u32 zero = 0, sequence = bpf_ntohl(ack->option.sequence);
    struct config *settings = bpf_map_lookup_elem(&config, &zero);
    struct range newest = range_of(&ack->option.ranges[0]), older = newest;
    __u64 now = bpf_ktime_get_ns();

    if (ack->ranges == 2)
        older = range_of(&ack->option.ranges[1]);
    if (!settings || bpf_ntohl(ack->option.pep) != settings->pep)
        return PEP_ACKS_OTHER_PEP;
    if (!is_plausible(newest, tp) || !is_plausible(older, tp))
        return PEP_ACKS_IMPLAUSIBLE;
    if (c->heard && !before(c->sequence, sequence))
        return PEP_ACKS_REPLAYED;
    if (!is_authentic(ack, &settings->key))
        return PEP_ACKS_WRONG_MAC;

    __u32 acknowledged = tp->snd_una;
    bool is_new;

    bpf_spin_lock(&c->lock);
    is_new = !c->heard || before(c->sequence, sequence); // another CPU may have been faster
    if (is_new) {
        c->sequence = sequence;
        c->heard++;
        c->heard_ns = now;
        if (before(newest.end, older.end))
            note_range(c, newest, acknowledged), note_range(c, older, acknowledged);
        else
            note_range(c, older, acknowledged), note_range(c, newest, acknowledged);
        if (c->probe_ns && !c->probe_us && !before(newest.end, c->probe)) {
            if (before(newest.start, c->probe)) {
                c->probe_us = (now - c->probe_ns) / 1000 + 1;
                if (!c->pep_rtt_us)
                    c->pep_rtt_us = c->probe_us;
                c->pep_rtt_us += ((__s32)c->probe_us - (__s32)c->pep_rtt_us) >> 2;
            } else {
                c->probe_ns = 0; // the segment was lost
            }
        }
    }
    bpf_spin_unlock(&c->lock);
    return is_new ? PEP_ACKS_USED : PEP_ACKS_REPLAYED;
}

SEC("tcx/ingress")
int tandem_pep_in(struct __sk_buff *skb)
{
    struct pep_ack ack;
    enum counter result = PEP_ACKS_NO_CONNECTION;

    if (!parse(skb, &ack))
        return TCX_NEXT;
    struct bpf_sock *sk = bpf_sk_lookup_tcp(skb, &ack.ends, ack.ends_len, BPF_F_CURRENT_NETNS, 0);

    if (sk) {
        struct connection *c = bpf_sk_storage_get(&connections, sk, 0, 0);
        struct bpf_tcp_sock *tp = bpf_tcp_sock(sk);

        if (c && tp)
            result = use(c, &ack, tp);
        bpf_sk_release(sk);
    }
    count(result, 1);
    return TCX_DROP;
}
