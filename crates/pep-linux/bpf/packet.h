// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Reads what a PEP needs of packets on their way to clients: TCP headers, and slices of QUIC packets.
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// 16 bytes of address and 2 of port of the server, after the length of the prefix. IPv4 addresses are
// mapped into IPv6. The port comes first, so that a prefix of addresses can be listed for a port.
// Port 0 in the list stands for all ports.
struct server {
	__u32 prefix_bits;
	__u8 port[2];
	__u8 address[16];
} __attribute__((packed)); // without a gap at its end: the map compares every byte

// A packet; also the record for user space, which record.rs reads. 72 bytes.
struct record {
	__u64 nanos; // CLOCK_MONOTONIC
	__u8 server[16];
	__u8 client[16];
	__u8 server_port[2];
	__u8 client_port[2];
	__u8 protocol; // IPPROTO_TCP or IPPROTO_UDP
	__u8 flags; // of TCP
	__u8 from_client; // 1 at egress
	__u8 unused;
	__u32 sequence; // of TCP, in the order of the host, as the next two
	__u32 acknowledges;
	__u32 length; // of the TCP data
	__u8 slice[10]; // of QUIC
	__u8 padding[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct server);
	__type(value, __u64);
} servers SEC(".maps");

static __always_inline int is_listed(struct record *record)
{
	struct server key = {.prefix_bits = 144};
	__builtin_memcpy(key.address, record->server, 16);
	if (bpf_map_lookup_elem(&servers, &key)) // all ports
		return 1;
	__builtin_memcpy(key.port, record->server_port, 2);
	return bpf_map_lookup_elem(&servers, &key) != 0;
}

// Reads the addresses; returns the offset of the transport header, and its length with the data.
static __always_inline int addresses(struct __sk_buff *skb, struct record *record, __u32 *length)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__u8 ip[20];
		if (bpf_skb_load_bytes(skb, ETH_HLEN, ip, sizeof(ip)))
			return -1;
		__u32 header = (ip[0] & 15) * 4;
		__u32 total = ip[2] << 8 | ip[3];
		// Fragments have no ports, or not all of the data.
		if (header < 20 || total < header || (ip[6] & 0x3f) || ip[7])
			return -1;
		record->protocol = ip[9];
		record->server[10] = record->server[11] = 0xff;
		record->client[10] = record->client[11] = 0xff;
		__builtin_memcpy(record->server + 12, ip + 12, 4);
		__builtin_memcpy(record->client + 12, ip + 16, 4);
		*length = total - header;
		return ETH_HLEN + header;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		__u8 ip[40];
		if (bpf_skb_load_bytes(skb, ETH_HLEN, ip, sizeof(ip)))
			return -1;
		record->protocol = ip[6]; // extension headers are neither TCP nor UDP, and ignored
		__builtin_memcpy(record->server, ip + 8, 16);
		__builtin_memcpy(record->client, ip + 24, 16);
		*length = ip[4] << 8 | ip[5];
		return ETH_HLEN + 40;
	}
	return -1;
}

static __always_inline int tcp(struct __sk_buff *skb, struct record *record, int at, __u32 length)
{
	__u8 tcp[20];
	if (bpf_skb_load_bytes(skb, at, tcp, sizeof(tcp)))
		return -1;
	__u32 header = (tcp[12] >> 4) * 4;
	if (header < 20 || length < header)
		return -1;
	__u32 number;
	__builtin_memcpy(record->server_port, tcp, 4); // both ports
	__builtin_memcpy(&number, tcp + 4, 4);
	record->sequence = bpf_ntohl(number);
	__builtin_memcpy(&number, tcp + 8, 4);
	record->acknowledges = bpf_ntohl(number);
	record->flags = tcp[13];
	record->length = length - header;
	return 0;
}

static __always_inline int quic(struct __sk_buff *skb, struct record *record, int at, __u32 length)
{
	__u8 udp[8 + 35];
	if (length < sizeof(udp) || bpf_skb_load_bytes(skb, at, udp, sizeof(udp)))
		return -1;
	if (udp[8] & 0x80) // a long header. The fixed bit says nothing (RFC 9287).
		return -1;
	__builtin_memcpy(record->server_port, udp, 4); // both ports
	__builtin_memcpy(record->slice, udp + 8 + 25, sizeof(record->slice));
	return 0;
}

// Reads a packet. Returns whether it is one of a listed server, of which a PEP-ACK can tell.
static __always_inline int read_packet(struct __sk_buff *skb, struct record *record)
{
	__u32 length = 0;
	int at = addresses(skb, record, &length);
	if (at < 0)
		return 0;
	if (record->protocol == IPPROTO_TCP) {
		if (tcp(skb, record, at, length))
			return 0;
	} else if (record->protocol != IPPROTO_UDP || quic(skb, record, at, length)) {
		return 0;
	}
	return is_listed(record);
}
