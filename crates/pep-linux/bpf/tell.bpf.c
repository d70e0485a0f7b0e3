// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A whole PEP in the kernel, at the device towards the servers. `tandem_tell` runs at its ingress. It notes packets on their
// way to clients, and when a PEP-ACK is due, it sends a clone of the packet back. `tandem_leave` runs at the egress, where the
// clone becomes the PEP-ACK. The packets themselves are never changed or dropped.
#include "pep_ack.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings_of_pep SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024); // user space says how many
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct draft);
} drafts SEC(".maps");

enum counter { OBSERVED, LEFT, UNTOLD, UNSENT, COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static const struct flow new_flow;

static __always_inline void count(enum counter counter)
{
	__u32 at = counter;
	__u64 *count = bpf_map_lookup_elem(&counters, &at);
	if (count)
		(*count)++;
}

// In a frame of the stack of its own, because together they are too large.
static __attribute__((noinline)) int read(struct __sk_buff *skb, struct record *record)
{
	return read_packet(skb, record);
}

// The flow of a packet. A connection that begins is another flow than the one before.
static __attribute__((noinline)) struct flow *flow_of(const struct record *record)
{
	struct flow_key key = {.protocol = record->protocol};

	__builtin_memcpy(key.server, record->server, 32); // the client, too
	__builtin_memcpy(key.ports, record->server_port, 4);
	if (record->protocol == IPPROTO_TCP && record->flags & SYN)
		bpf_map_delete_elem(&flows, &key);
	struct flow *flow = bpf_map_lookup_elem(&flows, &key);
	if (flow || (record->protocol == IPPROTO_TCP && !record->length))
		return flow;
	bpf_map_update_elem(&flows, &key, &new_flow, BPF_NOEXIST);
	return bpf_map_lookup_elem(&flows, &key);
}

// Takes a flow for this CPU. Another one has it for a fraction of a microsecond at most.
static __always_inline int lock(struct flow *flow)
{
	for (int i = 0; i < 100; i++)
		if (!__sync_val_compare_and_swap(&flow->busy, 0, 1))
			return 1;
	return 0;
}

SEC("classifier")
int tandem_tell(struct __sk_buff *skb)
{
	struct record record = {};
	__u32 zero = 0;

	if (!read(skb, &record))
		return TC_ACT_UNSPEC;
	struct settings *settings = bpf_map_lookup_elem(&settings_of_pep, &zero);
	struct draft *draft = bpf_map_lookup_elem(&drafts, &zero);
	struct flow *flow = flow_of(&record);
	if (!settings || !draft || !flow)
		return TC_ACT_UNSPEC;
	record.nanos = bpf_ktime_get_ns();
	count(OBSERVED);
	draft->is_ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	if (!lock(flow)) {
		__sync_fetch_and_add(&flow->missed, 1);
		count(UNTOLD);
		return TC_ACT_UNSPEC;
	}
	struct content content = {};
	int is_due = note(flow, &record, settings);
	if (is_due)
		content = write_content(draft, &record, flow, settings->pep);
	__sync_lock_test_and_set(&flow->busy, 0);
	if (!is_due || !write_frame(skb, draft, &record, &content, settings))
		return TC_ACT_UNSPEC;
	draft->is_ready = 1;
	count(bpf_clone_redirect(skb, skb->ifindex, 0) ? UNSENT : LEFT);
	draft->is_ready = 0; // something before the program at egress may have dropped the clone
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int tandem_leave(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct draft *draft = bpf_map_lookup_elem(&drafts, &zero);

	// A clone passes here while the program at ingress of the same CPU waits; no other packet does.
	if (!draft || !draft->is_ready)
		return TC_ACT_UNSPEC;
	draft->is_ready = 0;
	__u32 transport = ETH_HLEN + (draft->is_ipv6 ? 40 : 20), length = draft->length;
	// The kernel cuts no checksum off that the device has to complete: that is how to know that there is one.
	__u16 checksum = bpf_skb_change_tail(skb, transport + draft->checksum_at, 0) ? draft->pseudo : draft->checksum;
	__u8 *at = draft->frame + TRANSPORT_OFF;

	if (draft->checksum_at == 6)
		*(__u16 *)(at + 6) = checksum;
	else
		*(__u16 *)(at + 16) = checksum;
	if (length < ETH_HLEN || length > sizeof(draft->frame) - 32 || bpf_skb_change_tail(skb, length, 0))
		return TC_ACT_SHOT;
	at = draft->frame + MAC_OFF + (draft->is_ipv6 ? 0 : 20);
	if (bpf_skb_store_bytes(skb, 0, at, length, BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH))
		return TC_ACT_SHOT;
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual MIT/GPL";
