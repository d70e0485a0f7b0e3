// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Flows, and PEP-ACKs for them (docs/design/wire.md, "PEP-ACKs").
#pragma once

#include "packet.h"
#include "sha256.h"

#define SEEN_MAX 8 // with more of them, the MAC of a PEP-ACK needs another block
#define RANGES_MAX 2
#define RANGE_BYTES_MAX (1 << 30) // sequence numbers can be compared within half of their space
#define INTERVAL_NS 1000000

#define FIN 1
#define SYN 2
#define RST 4

#define HOP_LIMIT 64
#define MAC_OFF 2 // of the frame: so that the payload of UDP lies at a multiple of 8
#define TRANSPORT_OFF (MAC_OFF + ETH_HLEN + 40)
#define PAYLOAD_OFF (TRANSPORT_OFF + 8)
#define OPTION_OFF (TRANSPORT_OFF + 20)
#define ENDS_LEN 36 // of the message: addresses and ports, or less of them in front of what comes next
#define QUIC_HEADER_LEN 20
#define QUIC_MAC_LEN 16
#define TCP_HEADER_LEN 16
#define TCP_MAC_LEN 8

// Written by user space; see kernel.rs.
struct settings {
	struct hmac_key key;
	__u32 has_key;
	__u32 pep; // the identifier
	__u32 packets; // this many make a PEP-ACK leave
};

struct flow_key {
	__u8 server[16];
	__u8 client[16];
	__u8 ports[4];
	__u32 protocol;
};

struct seen {
	__u32 micros;
	__u8 slice[10];
	__u8 unused[2];
};

struct range {
	__u32 start, end;
};

struct flow {
	__u32 busy; // 1 while a CPU uses it
	__u32 missed; // packets that came meanwhile
	__u32 sequence; // of the next PEP-ACK
	__u64 told; // when the last PEP-ACK left
	__u32 waiting; // packets
	__u32 has_ended;
	__u32 acknowledges;
	__u32 ranges_len;
	struct range ranges[RANGES_MAX]; // the one that grew last comes first
	struct seen seen[SEEN_MAX];
};

// The PEP-ACK that this CPU makes. The frame of an IPv4 packet begins 20 bytes later.
struct draft {
	struct hash hash;
	__u32 is_ready; // the program at egress may take it
	__u32 is_ipv6;
	__u32 length; // of the frame
	__u32 checksum_at; // behind the beginning of the transport header
	__u16 pseudo; // the checksum for devices that complete it
	__u16 checksum;
	__u8 frame[256] __attribute__((aligned(8)));
};

static __always_inline int is_after(__u32 number, __u32 other)
{
	return (__s32)(number - other) > 0;
}

// Notes that a segment has come.
static __always_inline void add_range(struct flow *flow, struct range grown)
{
	struct range kept = {};
	__u32 others = 0;

	for (__u32 i = 0; i < RANGES_MAX; i++) {
		struct range *range = &flow->ranges[i];
		if (i >= flow->ranges_len)
			break;
		if (!is_after(grown.start, range->end) && !is_after(range->start, grown.end)) {
			if (is_after(grown.start, range->start))
				grown.start = range->start;
			if (is_after(range->end, grown.end))
				grown.end = range->end;
		} else if (!others++) {
			kept = *range;
		}
	}
	if (grown.end - grown.start > RANGE_BYTES_MAX)
		grown.start = grown.end - RANGE_BYTES_MAX;
	flow->ranges[0] = grown;
	flow->ranges[1] = kept;
	flow->ranges_len = others ? 2 : 1;
}

// Notes that a packet has come. Returns whether a PEP-ACK has to leave.
static __always_inline int note(struct flow *flow, const struct record *record, const struct settings *settings)
{
	// No PEP-ACK covers some packets before this one. A number that is left out says so, for all packets between
	// the last PEP-ACK and the first packet of the next one.
	if (flow->missed && __sync_lock_test_and_set(&flow->missed, 0)) {
		flow->sequence++;
		flow->waiting = 0;
		flow->ranges_len = 0;
	}
	if (record->protocol == IPPROTO_TCP) {
		__u32 start = record->sequence + (record->flags & SYN ? 1 : 0);
		struct range range = {start, start + record->length};

		if (record->flags & (FIN | RST))
			flow->has_ended = 1;
		if (flow->has_ended || !record->length)
			return 0;
		add_range(flow, range);
		if (!flow->acknowledges || is_after(record->acknowledges, flow->acknowledges))
			flow->acknowledges = record->acknowledges;
	} else {
		struct seen *seen = &flow->seen[flow->waiting & (SEEN_MAX - 1)];

		seen->micros = record->nanos / 1000;
		__builtin_memcpy(seen->slice, record->slice, sizeof(seen->slice));
	}
	flow->waiting++;
	return flow->waiting >= settings->packets || flow->waiting >= SEEN_MAX ||
	       record->nanos - flow->told >= INTERVAL_NS;
}

// The identifier of the PEP, the number of the PEP-ACK, and the time.
static __always_inline void write_header(__u32 *at, struct flow *flow, __u32 pep, __u32 micros)
{
	at[0] = bpf_htonl(pep);
	at[1] = bpf_htonl(flow->sequence);
	at[2] = bpf_htonl(micros);
}

// Writes the payload of UDP without its MAC into the message; returns its length.
static __always_inline __u32 write_slices(struct hash *hash, struct flow *flow, __u32 pep, __u32 micros)
{
	__u8 *payload = hash->message + ENDS_LEN;
	__u32 count = flow->waiting;

	if (count > SEEN_MAX) // never; for the verifier
		count = SEEN_MAX;
	*(__u32 *)payload = bpf_htonl(0x85545045); // a long header, and the version "TPEP"
	*(__u32 *)(payload + 4) = bpf_htonl(0x50ff0100 | count);
	write_header((__u32 *)(payload + 8), flow, pep, micros);
	for (__u32 i = 0; i < SEEN_MAX; i++) {
		struct seen *seen = &flow->seen[i];
		__u8 *to = payload + QUIC_HEADER_LEN + 12 * i;
		__u32 age = micros - seen->micros;

		if (i >= count)
			break;
		__builtin_memcpy(to, seen->slice, sizeof(seen->slice));
		*(__u16 *)(to + 10) = bpf_htons(age > 0xffff ? 0xffff : age);
	}
	return QUIC_HEADER_LEN + 12 * count;
}

// Writes the option of TCP without its MAC into the message; returns its length.
static __always_inline __u32 write_ranges(struct hash *hash, struct flow *flow, __u32 pep, __u32 micros)
{
	__u8 *option = hash->message + ENDS_LEN;
	__u32 length = TCP_HEADER_LEN + (flow->ranges_len > 1 ? 16 : 8);

	*(__u32 *)option = bpf_htonl(253U << 24 | (length + TCP_MAC_LEN) << 16 | 0x5450);
	write_header((__u32 *)(option + 4), flow, pep, micros);
	for (__u32 i = 0; i < RANGES_MAX; i++) {
		*(__u32 *)(option + TCP_HEADER_LEN + 8 * i) = bpf_htonl(flow->ranges[i].start);
		*(__u32 *)(option + TCP_HEADER_LEN + 8 * i + 4) = bpf_htonl(flow->ranges[i].end);
	}
	return length;
}

// Writes both ends in front of the message; returns where they begin.
static __always_inline __u32 write_ends(struct hash *hash, const struct record *record, __u32 is_ipv6)
{
	if (is_ipv6) {
		__builtin_memcpy(hash->message, record->client, 16);
		__builtin_memcpy(hash->message + 16, record->client_port, 2);
		__builtin_memcpy(hash->message + 18, record->server, 16);
		__builtin_memcpy(hash->message + 34, record->server_port, 2);
		return 0;
	}
	__builtin_memcpy(hash->message + 24, record->client + 12, 4);
	__builtin_memcpy(hash->message + 28, record->client_port, 2);
	__builtin_memcpy(hash->message + 30, record->server + 12, 4);
	__builtin_memcpy(hash->message + 34, record->server_port, 2);
	return ENDS_LEN - 12;
}

static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

// The headers of Ethernet and IP, of the client.
static __always_inline int write_ip(struct __sk_buff *skb, struct draft *draft, const struct record *record, __u32 length)
{
	__u8 *at = draft->frame + MAC_OFF + (draft->is_ipv6 ? 0 : 20), ethernet[ETH_HLEN];

	if (bpf_skb_load_bytes(skb, 0, ethernet, sizeof(ethernet)))
		return -1;
	__builtin_memcpy(at, ethernet + 6, 6);
	__builtin_memcpy(at + 6, ethernet, 6);
	__builtin_memcpy(at + 12, ethernet + 12, 2);
	at += ETH_HLEN;
	if (draft->is_ipv6) {
		*(__u32 *)at = bpf_htonl(6U << 28);
		*(__u16 *)(at + 4) = bpf_htons(length);
		at[6] = record->protocol;
		at[7] = HOP_LIMIT;
		__builtin_memcpy(at + 8, record->client, 16);
		__builtin_memcpy(at + 24, record->server, 16);
		draft->length = ETH_HLEN + 40 + length;
		return 0;
	}
	*(__u32 *)at = bpf_htonl(0x45000000 | (20 + length));
	*(__u32 *)(at + 4) = bpf_htonl(0x4000); // do not fragment
	*(__u32 *)(at + 8) = bpf_htonl(HOP_LIMIT << 24 | record->protocol << 16);
	__builtin_memcpy(at + 12, record->client + 12, 4);
	__builtin_memcpy(at + 16, record->server + 12, 4);
	*(__u16 *)(at + 10) = ~folded(bpf_csum_diff(0, 0, (__be32 *)at, 20, 0));
	draft->length = ETH_HLEN + 20 + length;
	return 0;
}

// The header of UDP or TCP in front of the payload or the option; returns the length with both.
static __always_inline __u32 write_transport(struct draft *draft, const struct record *record, __u32 acknowledges,
					      __u32 length)
{
	__u8 *at = draft->frame + TRANSPORT_OFF;

	__builtin_memcpy(at, record->client_port, 2);
	__builtin_memcpy(at + 2, record->server_port, 2);
	if (record->protocol == IPPROTO_UDP) {
		draft->checksum_at = 6;
		*(__u32 *)(at + 4) = bpf_htonl((8 + length) << 16);
		return 8 + length;
	}
	draft->checksum_at = 16;
	*(__u32 *)(at + 4) = bpf_htonl(acknowledges);
	*(__u32 *)(at + 8) = 0;
	*(__u32 *)(at + 12) = bpf_htonl((20 + length) << 26); // the length in words, in 4 bits; no flags
	*(__u32 *)(at + 16) = 0;
	return 20 + length;
}

// Both checksums of the transport header. The prefix of mapped IPv4 addresses, 0xffff, changes no sum.
static __always_inline void sum(struct draft *draft, struct record *record, __u32 length)
{
	__s64 pseudo = bpf_csum_diff(0, 0, (__be32 *)record->server, 32, 0);

	pseudo = folded(pseudo) + bpf_htons(record->protocol) + bpf_htons(length);
	draft->pseudo = folded(pseudo);
	if (length > 20 + 40 && record->protocol == IPPROTO_TCP) // never; for the verifier
		return;
	if (length > 8 + QUIC_HEADER_LEN + 12 * SEEN_MAX + QUIC_MAC_LEN)
		return;
	draft->checksum = ~folded(bpf_csum_diff(0, 0, (__be32 *)(draft->frame + TRANSPORT_OFF), length & 0xfc, draft->pseudo));
	if (!draft->checksum && record->protocol == IPPROTO_UDP)
		draft->checksum = 0xffff; // 0 would mean that there is none
}

// What a PEP-ACK says, without its MAC.
struct content {
	__u32 start; // of the message of the MAC
	__u32 length; // of the content, which begins behind ENDS_LEN
	__u32 acknowledges;
};

// Writes what a PEP-ACK says of what waits, after which nothing waits.
static __always_inline struct content write_content(struct draft *draft, const struct record *record, struct flow *flow,
						    __u32 pep)
{
	struct content content = {.start = ENDS_LEN, .acknowledges = flow->acknowledges};

	if (record->protocol == IPPROTO_TCP) {
		content.length = write_ranges(&draft->hash, flow, pep, record->nanos / 1000);
		content.start = write_ends(&draft->hash, record, draft->is_ipv6);
	} else {
		content.length = write_slices(&draft->hash, flow, pep, record->nanos / 1000);
	}
	flow->sequence++;
	flow->waiting = 0;
	flow->told = record->nanos;
	return content;
}

// Makes the frame of a PEP-ACK. Returns whether it can leave.
static __always_inline int write_frame(struct __sk_buff *skb, struct draft *draft, struct record *record,
				       const struct content *content, const struct settings *settings)
{
	struct hash *hash = &draft->hash;
	__u32 is_tcp = record->protocol == IPPROTO_TCP, length = content->length;
	__u32 mac_len = is_tcp ? TCP_MAC_LEN : QUIC_MAC_LEN;
	__u8 *payload = draft->frame + (is_tcp ? OPTION_OFF : PAYLOAD_OFF);

	if (length > QUIC_HEADER_LEN + 12 * SEEN_MAX) // never; for the verifier
		return 0;
	if (is_tcp)
		__builtin_memcpy(draft->frame + OPTION_OFF, hash->message + ENDS_LEN, TCP_HEADER_LEN + 16);
	else
		__builtin_memcpy(draft->frame + PAYLOAD_OFF, hash->message + ENDS_LEN, QUIC_HEADER_LEN + 12 * SEEN_MAX);
	if (settings->has_key)
		hmac_sha256(hash, &settings->key, content->start, ENDS_LEN + length);
	for (__u32 i = 0; i < QUIC_MAC_LEN / 4; i++)
		if (4 * i < mac_len)
			*(__u32 *)(payload + (length & 0xfc) + 4 * i) = settings->has_key ? bpf_htonl(hash->state[i]) : 0;
	length = write_transport(draft, record, content->acknowledges, length + mac_len);
	if (write_ip(skb, draft, record, length))
		return 0;
	sum(draft, record, length);
	return 1;
}
