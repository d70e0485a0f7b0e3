// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What the BPF programs share with the program that loads them.
#pragma once

#include <linux/types.h>

#define ID_LEN 8 // of all connection IDs here; others would stay in user space

enum transform { IDENTITY, DECODE, ENCODE }; // the last two: scramble-dt, from the client and to the client

// Packets from this address to this port, with this connection ID. 16 bytes; all but IDs in network order.
struct rule_key {
	__be32 remote;
	__be16 remote_port, local_port;
	__u8 id[ID_LEN];
};

struct rule {
	__be32 from, to; // the new addresses
	__be16 from_port, to_port;
	__u8 id[ID_LEN]; // the new ID
	__u32 user, transform, cipher;
	__u32 device; // where the packet leaves
	__u64 packets, bytes;
	__u64 last; // when the last packet came, in nanoseconds of CLOCK_MONOTONIC: for the idle timer
};

struct bucket { // of a user; the lock stands before it in the map
	__u64 rate, burst; // bytes a second, and bytes
	__u64 tokens, filled; // bytes, and nanoseconds
	__u64 refused; // packets
};

// What the program that makes ciphers reads.
struct make {
	char algorithm[32];
	__u8 key[16];
	__u32 index;
	int error;
};
