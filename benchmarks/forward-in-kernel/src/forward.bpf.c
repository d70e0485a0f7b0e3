// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Forwards packets of mode `forward` without user space, at tc ingress or in XDP. Only IPv4, and IDs of 8 bytes.
// What has no rule, or does not look as expected, goes on to user space.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "forward.h"

#define HEADERS_LEN (ETH_HLEN + 20 + 8)
#define PLAIN_LEN 32 // bytes of a packet whose change the checksum gets at once: first byte, ID, IV, and the next 7
#define STREAM_AT 24 // where the counter mode begins: the place of the first byte meanwhile, as in transform.rs
#define BLOCKS_MAX 96
#define SEGMENTS_MAX 64

struct bpf_crypto_params { // as in the kernel
	char type[14];
	__u8 reserved[2];
	char algo[128];
	__u8 key[256];
	__u32 key_len;
	__u32 authsize;
} __attribute__((preserve_access_index));

struct bpf_crypto_ctx { // the kernel's, of which only the name counts
	int unused;
} __attribute__((preserve_access_index));

struct bpf_crypto_ctx *bpf_crypto_ctx_create(const struct bpf_crypto_params *, __u32, int *) __attribute__((section(".ksyms")));
void bpf_crypto_ctx_release(struct bpf_crypto_ctx *) __attribute__((section(".ksyms")));
int bpf_crypto_encrypt(struct bpf_crypto_ctx *, const struct bpf_dynptr *, const struct bpf_dynptr *,
		       const struct bpf_dynptr *) __attribute__((section(".ksyms")));
int bpf_crypto_decrypt(struct bpf_crypto_ctx *, const struct bpf_dynptr *, const struct bpf_dynptr *,
		       const struct bpf_dynptr *) __attribute__((section(".ksyms")));

struct cipher {
	struct bpf_crypto_ctx __attribute__((btf_type_tag("kptr"))) *ctx;
};

struct user {
	struct bpf_spin_lock lock;
	struct bucket bucket;
};

struct scratch {
	__u64 words[2 * BLOCKS_MAX];
	__u64 iv[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct rule_key);
	__type(value, struct rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct user);
} users SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024); // two for each direction: that of the counter mode, and that of the IV
	__type(key, __u32);
	__type(value, struct cipher);
} ciphers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

// Creates a cipher; user space runs it, because packets' programs cannot.
SEC("syscall") int make_cipher(struct make *make)
{
	struct bpf_crypto_params params = {.type = "skcipher", .key_len = 16};
	__builtin_memcpy(params.algo, make->algorithm, sizeof(make->algorithm));
	__builtin_memcpy(params.key, make->key, sizeof(make->key));
	__u32 index = make->index;
	struct cipher *cipher = bpf_map_lookup_elem(&ciphers, &index);
	if (!cipher)
		return 1;
	int error = 0;
	struct bpf_crypto_ctx *ctx = bpf_crypto_ctx_create(&params, sizeof(params), &error);
	make->error = error;
	if (!ctx)
		return 1;
	ctx = bpf_kptr_xchg(&cipher->ctx, ctx);
	if (ctx)
		bpf_crypto_ctx_release(ctx);
	return 0;
}

// Whether the user may send this now.
static __always_inline int admit(__u32 index, __u32 packets, __u32 bytes, __u64 now)
{
	struct user *user = bpf_map_lookup_elem(&users, &index);
	if (!user)
		return 0;
	struct bucket *bucket = &user->bucket;
	int may = 0;
	bpf_spin_lock(&user->lock);
	__u64 waited = now > bucket->filled ? now - bucket->filled : 0;
	if (waited > 1000000000)
		waited = 1000000000;
	bucket->filled = now;
	bucket->tokens += waited * (bucket->rate >> 10) / (1000000000 >> 10);
	if (bucket->tokens > bucket->burst)
		bucket->tokens = bucket->burst;
	if (bucket->tokens >= bytes) {
		bucket->tokens -= bytes;
		may = 1;
	} else {
		bucket->refused += packets;
	}
	bpf_spin_unlock(&user->lock);
	return may;
}

static __always_inline void count(struct rule *rule, __u32 packets, __u32 bytes, __u64 now)
{
	__sync_fetch_and_add(&rule->packets, packets);
	__sync_fetch_and_add(&rule->bytes, bytes);
	rule->last = now;
}

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

// Finds the rule of a packet with a short header. `payload` has PLAIN_LEN bytes or more.
static __always_inline struct rule *find(struct iphdr *ip, struct udphdr *udp, __u8 *payload)
{
	struct rule_key key = {.remote = ip->saddr, .remote_port = udp->source, .local_port = udp->dest};
	if (payload[0] & 0x80)
		return 0;
	__builtin_memcpy(key.id, payload + 1, ID_LEN);
	return bpf_map_lookup_elem(&rules, &key);
}

// The steps of scramble-dt on a payload whose ID has been replaced. Returns the change of the sum of all 16-bit words
// from PLAIN_LEN on, or -1 if it could not be done.
static __always_inline __s64 scramble(__u8 *payload, void *end, __u32 len, struct rule *rule)
{
	__u32 zero = 0, stream_at = 2 * rule->cipher, iv_at = stream_at + 1;
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
	struct cipher *stream = bpf_map_lookup_elem(&ciphers, &stream_at), *iv = bpf_map_lookup_elem(&ciphers, &iv_at);
	if (!scratch || !stream || !iv)
		return -1;
	struct bpf_crypto_ctx *stream_ctx = stream->ctx, *iv_ctx = iv->ctx;
	if (!stream_ctx || !iv_ctx)
		return -1;
	__u32 blocks = (len - STREAM_AT + 15) / 16;
	if (blocks == 0 || blocks > BLOCKS_MAX)
		return -1;

	// The IV.
	__u64 high, low, sent_high, sent_low;
	struct bpf_dynptr iv_bytes, bytes;
	__builtin_memcpy(scratch->iv, payload + 1 + ID_LEN, 16);
	high = scratch->iv[0], low = scratch->iv[1];
	bpf_dynptr_from_mem(scratch->iv, 16, 0, &iv_bytes);
	if (rule->transform == ENCODE ? bpf_crypto_encrypt(iv_ctx, &iv_bytes, &iv_bytes, 0)
				      : bpf_crypto_decrypt(iv_ctx, &iv_bytes, &iv_bytes, 0))
		return -1;
	sent_high = scratch->iv[0], sent_low = scratch->iv[1];
	if (rule->transform == DECODE)
		high = sent_high, low = sent_low;

	// The key stream.
	high = bpf_be64_to_cpu(high), low = bpf_be64_to_cpu(low);
	for (__u32 i = 0; i < BLOCKS_MAX; i++) {
		if (i >= blocks)
			break;
		scratch->words[2 * i] = bpf_cpu_to_be64(high);
		scratch->words[2 * i + 1] = bpf_cpu_to_be64(low);
		if (!++low)
			high++;
	}
	bpf_dynptr_from_mem(scratch->words, 16 * blocks, 0, &bytes);
	if (bpf_crypto_encrypt(stream_ctx, &bytes, &bytes, 0))
		return -1;

	__u64 before = 0, after = 0;
	payload[STREAM_AT] = payload[0];
	__u32 i;
	for (i = 0; i < 2 * BLOCKS_MAX; i++) {
		__u64 *word = (__u64 *)(payload + STREAM_AT + 8 * i);
		if ((void *)(word + 1) > end)
			break;
		__u64 old = *word, new = old ^ scratch->words[i];
		*word = new;
		if (i) {
			before += (old & 0xffffffff) + (old >> 32);
			after += (new & 0xffffffff) + (new >> 32);
		}
	}
	for (__u32 j = 0; j < 7; j++) {
		__u8 *byte = payload + STREAM_AT + 8 * i + j;
		if (i >= 2 * BLOCKS_MAX || (void *)(byte + 1) > end)
			break;
		__u8 old = *byte, new = old ^ ((__u8 *)scratch->words)[8 * i + j];
		*byte = new;
		before += (__u64)old << 8 * (j & 1); // in the order of the host, which is little-endian
		after += (__u64)new << 8 * (j & 1);
	}
	payload[0] = payload[STREAM_AT] & 0x7f;
	__builtin_memcpy(payload + 1 + ID_LEN, &sent_high, 8);
	__builtin_memcpy(payload + 9 + ID_LEN, &sent_low, 8);
	return (__s64)folded(after) + (__u16)~folded(before);
}

static __always_inline void readdress(struct iphdr *ip, struct udphdr *udp, const struct rule *rule)
{
	ip->saddr = rule->from, ip->daddr = rule->to;
	ip->ttl = 64; // it is a new packet, and Not-ECT
	ip->tos = 0;
	ip->check = 0;
	ip->check = ~folded(bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0));
	udp->source = rule->from_port, udp->dest = rule->to_port;
}

struct change { // of sums: of addresses, and of the rest
	__u64 addresses, rest;
};

// Rewrites a packet. Returns 0 if it cannot be done.
static __always_inline int rewrite(struct iphdr *ip, struct udphdr *udp, __u8 *payload, void *end, __u32 len,
				   struct rule *rule, struct change *change)
{
	__u8 before[PLAIN_LEN];
	__be32 old[3] = {ip->saddr, ip->daddr, *(__be32 *)udp}, new[3];
	__builtin_memcpy(before, payload, sizeof(before));
	__builtin_memcpy(payload + 1, rule->id, ID_LEN);
	__s64 rest = 0;
	if (rule->transform != IDENTITY) {
		rest = scramble(payload, end, len, rule);
		if (rest < 0)
			return 0;
	}
	readdress(ip, udp, rule);
	new[0] = ip->saddr, new[1] = ip->daddr, new[2] = *(__be32 *)udp;
	change->addresses = bpf_csum_diff(old, 8, new, 8, 0);
	rest += bpf_csum_diff(old + 2, 4, new + 2, 4, 0);
	rest += bpf_csum_diff((__be32 *)before, PLAIN_LEN, (__be32 *)payload, PLAIN_LEN, 0);
	change->rest = folded(rest);
	return 1;
}

static __always_inline int is_ours(struct ethhdr *eth, struct iphdr *ip)
{
	return eth->h_proto == bpf_htons(ETH_P_IP) && *(__u8 *)ip == 0x45 && ip->protocol == IPPROTO_UDP &&
	       !(ip->frag_off & bpf_htons(0x3fff));
}

SEC("tc") int forward_tc(struct __sk_buff *skb)
{
	__u32 gso_size = skb->gso_size, packets = 1, bytes = skb->len - HEADERS_LEN;
	if (skb->len < HEADERS_LEN + PLAIN_LEN)
		return TC_ACT_OK;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + HEADERS_LEN + PLAIN_LEN > end) {
		if (bpf_skb_pull_data(skb, HEADERS_LEN + PLAIN_LEN))
			return TC_ACT_OK;
		data = (void *)(long)skb->data, end = (void *)(long)skb->data_end;
		if (data + HEADERS_LEN + PLAIN_LEN > end)
			return TC_ACT_OK;
	}
	struct iphdr *ip = data + ETH_HLEN;
	struct udphdr *udp = data + ETH_HLEN + 20;
	__u8 *payload = data + HEADERS_LEN;
	if (!is_ours(data, ip))
		return TC_ACT_OK;
	struct rule *rule = find(ip, udp, payload);
	if (!rule)
		return TC_ACT_OK;
	__u64 now = bpf_ktime_get_ns();

	// Packets that the kernel has merged: of one flow they are forwarded together, others go to user space.
	if (gso_size) {
		packets = (bytes + gso_size - 1) / gso_size;
		if (packets > SEGMENTS_MAX || rule->transform != IDENTITY)
			return TC_ACT_OK;
		__u64 first, id;
		__u8 seen[1 + ID_LEN];
		__builtin_memcpy(&first, payload + 1, ID_LEN);
		for (__u32 i = 1; i < SEGMENTS_MAX; i++) {
			if (i >= packets)
				break;
			if (bpf_skb_load_bytes(skb, HEADERS_LEN + i * gso_size, seen, sizeof(seen)))
				return TC_ACT_OK;
			__builtin_memcpy(&id, seen + 1, ID_LEN);
			if (seen[0] & 0x80 || id != first)
				return TC_ACT_OK;
		}
	}
	if (!admit(rule->user, packets, bytes, now))
		return TC_ACT_SHOT;
	if (gso_size) {
		for (__u32 i = 1; i < SEGMENTS_MAX; i++) {
			if (i >= packets)
				break;
			if (bpf_skb_store_bytes(skb, HEADERS_LEN + i * gso_size + 1, rule->id, ID_LEN, 0))
				return TC_ACT_SHOT;
		}
	} else if (rule->transform != IDENTITY && data + skb->len > end && bpf_skb_pull_data(skb, 0)) {
		return TC_ACT_SHOT;
	}
	data = (void *)(long)skb->data, end = (void *)(long)skb->data_end;
	if (data + HEADERS_LEN + PLAIN_LEN > end)
		return TC_ACT_SHOT;
	ip = data + ETH_HLEN, udp = data + ETH_HLEN + 20, payload = data + HEADERS_LEN;
	struct change change;
	if (!rewrite(ip, udp, payload, end, bytes, rule, &change))
		return TC_ACT_SHOT;
	count(rule, packets, bytes, now);
	__u32 check = ETH_HLEN + 20 + 6;
	bpf_l4_csum_replace(skb, check, 0, change.addresses, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0);
	bpf_l4_csum_replace(skb, check, 0, change.rest, BPF_F_MARK_MANGLED_0);
	return bpf_redirect_neigh(rule->device, 0, 0, 0);
}

SEC("xdp") int forward_xdp(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + HEADERS_LEN + PLAIN_LEN > end)
		return XDP_PASS;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + ETH_HLEN;
	struct udphdr *udp = data + ETH_HLEN + 20;
	__u8 *payload = data + HEADERS_LEN;
	__u32 bytes = end - data - HEADERS_LEN;
	if (!is_ours(eth, ip))
		return XDP_PASS;
	struct rule *rule = find(ip, udp, payload);
	if (!rule)
		return XDP_PASS;
	__u64 now = bpf_ktime_get_ns();
	if (!admit(rule->user, 1, bytes, now))
		return XDP_DROP;
	struct change change;
	if (!rewrite(ip, udp, payload, end, bytes, rule, &change))
		return XDP_DROP;
	if (udp->check) {
		udp->check = ~folded((__u16)~udp->check + change.addresses + change.rest);
		if (!udp->check)
			udp->check = 0xffff;
	}
	count(rule, 1, bytes, now);
	struct bpf_fib_lookup route = {.family = 2, .ifindex = rule->device, .ipv4_src = ip->saddr, .ipv4_dst = ip->daddr,
				       .l4_protocol = IPPROTO_UDP, .tot_len = bpf_ntohs(ip->tot_len)};
	if (bpf_fib_lookup(ctx, &route, sizeof(route), BPF_FIB_LOOKUP_OUTPUT))
		return XDP_DROP; // the next hop's address is not known yet, for instance
	__builtin_memcpy(eth->h_source, route.smac, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, route.dmac, ETH_ALEN);
	return bpf_redirect(route.ifindex, 0);
}

char _license[] SEC("license") = "Dual MIT/GPL";
