// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A stopwatch for each packet of the sender of this benchmark: from the ingress of the device towards the server to the
// egress of the device towards the client, and to the egress of its PEP-ACK. IPv4 without options only.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PACKETS (1 << 21)
#define TCP_BYTES 1180 // of each segment; see send.rs

#define ARRAY(name, value_type, entries)                     \
	struct {                                             \
		__uint(type, BPF_MAP_TYPE_ARRAY);            \
		__uint(max_entries, entries);                \
		__type(key, __u32);                          \
		__type(value, value_type);                   \
	} name SEC(".maps")

ARRAY(arrived, __u64, PACKETS); // nanoseconds
ARRAY(forwarded, __u32, PACKETS); // nanoseconds after it arrived, as the others
ARRAY(newest, __u32, PACKETS); // of the newest packet of a PEP-ACK
ARRAY(oldest, __u32, PACKETS); // of the oldest one
ARRAY(told, __u32, 1); // the next byte of TCP of which no PEP-ACK has told

// The number of a packet of the sender, or -1.
static __always_inline __s64 number(struct __sk_buff *skb)
{
	__u8 protocol;
	__u32 value;

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, ETH_HLEN + 9, &protocol, 1))
		return -1;
	if (protocol == IPPROTO_UDP) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + 20 + 8 + 25, &value, 4))
			return -1;
		return bpf_ntohl(value);
	}
	if (protocol != IPPROTO_TCP || skb->len < 200 || bpf_skb_load_bytes(skb, ETH_HLEN + 20 + 4, &value, 4))
		return -1;
	return bpf_ntohl(value) / TCP_BYTES;
}

static __always_inline void stop(void *map, __u32 number)
{
	__u64 *start = bpf_map_lookup_elem(&arrived, &number);
	__u32 *took = bpf_map_lookup_elem(map, &number);

	if (start && took && *start && !*took)
		*took = bpf_ktime_get_ns() - *start;
}

SEC("classifier")
int arrive(struct __sk_buff *skb)
{
	__s64 found = number(skb);
	__u32 at = found;
	__u64 *start = found < 0 ? 0 : bpf_map_lookup_elem(&arrived, &at);

	if (start)
		*start = bpf_ktime_get_ns();
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int forward(struct __sk_buff *skb)
{
	__s64 found = number(skb);

	if (found >= 0)
		stop(&forwarded, found);
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int acknowledge(struct __sk_buff *skb)
{
	__u8 protocol, start[8];
	__u32 value, zero = 0;

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, ETH_HLEN + 9, &protocol, 1))
		return TC_ACT_UNSPEC;
	if (protocol == IPPROTO_UDP) {
		__u32 payload = ETH_HLEN + 20 + 8;
		if (bpf_skb_load_bytes(skb, payload, start, 8) || start[0] != 0x85 || start[1] != 'T')
			return TC_ACT_UNSPEC;
		if (!bpf_skb_load_bytes(skb, payload + 20, &value, 4))
			stop(&oldest, bpf_ntohl(value));
		if (!bpf_skb_load_bytes(skb, payload + 20 + 12 * (start[7] - 1), &value, 4))
			stop(&newest, bpf_ntohl(value));
		return TC_ACT_UNSPEC;
	}
	__u32 option = ETH_HLEN + 20 + 20, *next = bpf_map_lookup_elem(&told, &zero);
	if (protocol != IPPROTO_TCP || !next || bpf_skb_load_bytes(skb, option, start, 4) || start[0] != 253 ||
	    bpf_skb_load_bytes(skb, option + 16 + 4, &value, 4))
		return TC_ACT_UNSPEC;
	value = bpf_ntohl(value);
	stop(&oldest, *next / TCP_BYTES);
	stop(&newest, value / TCP_BYTES - 1);
	*next = value;
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual MIT/GPL";
