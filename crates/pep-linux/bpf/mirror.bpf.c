// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Mirrors what a PEP needs of packets on their way to clients, so that user space makes PEP-ACKs of it.
// `tandem_mirror` runs at the ingress of the device towards the servers. `tandem_acks` runs at its egress, only if PEP-ACKs for TCP
// have to look like old acknowledgements of clients. Neither ever changes, drops or delays a packet.
#include "packet.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} records SEC(".maps");

// Whether user space wants to be woken by the next record. While packets come it does not: it sleeps for a while, and then
// reads all records, because to wake it takes several microseconds, for which the packet would wait.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sleeps SEC(".maps");

// 0: records that found no room.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static __always_inline void output(struct record *record)
{
	__u32 first = 0, *is_asleep = bpf_map_lookup_elem(&sleeps, &first);
	__u64 wake = BPF_RB_NO_WAKEUP;
	if (is_asleep && *is_asleep) {
		*is_asleep = 0;
		wake = BPF_RB_FORCE_WAKEUP;
	}
	record->nanos = bpf_ktime_get_ns();
	if (bpf_ringbuf_output(&records, record, sizeof(*record), wake)) {
		__u64 *count = bpf_map_lookup_elem(&lost, &first);
		if (count)
			(*count)++;
	}
}

SEC("classifier")
int tandem_mirror(struct __sk_buff *skb)
{
	struct record record = {};
	if (read_packet(skb, &record))
		output(&record);
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int tandem_acks(struct __sk_buff *skb)
{
	struct record record = {};
	__u32 length = 0;
	int at = addresses(skb, &record, &length);
	if (at < 0 || record.protocol != IPPROTO_TCP || tcp(skb, &record, at, length))
		return TC_ACT_UNSPEC;
	if ((record.flags & 0x16) != 0x10) // ACK without SYN and RST
		return TC_ACT_UNSPEC;
	// It was read as if it came from the server.
	struct record back = record;
	__builtin_memcpy(record.server, back.client, sizeof(record.server));
	__builtin_memcpy(record.client, back.server, sizeof(record.client));
	__builtin_memcpy(record.server_port, back.client_port, sizeof(record.server_port));
	__builtin_memcpy(record.client_port, back.server_port, sizeof(record.client_port));
	record.from_client = 1;
	if (is_listed(&record))
		output(&record);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual MIT/GPL";
