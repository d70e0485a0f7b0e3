// SPDX-License-Identifier: MIT OR Apache-2.0
//
// load OBJECT tc|xdp DEVICE...: loads the programs, reads lines from standard input, and detaches when they end. Lines:
//   user INDEX RATE BURST
//   cipher INDEX ALGORITHM KEY
//   rule REMOTE PORT LOCAL_PORT ID FROM PORT TO PORT ID USER TRANSFORM CIPHER DEVICE
//   go       attaches, and prints "ready"
// and afterwards
//   count    prints packets and bytes of all rules, packets that were refused to user 0, and nanoseconds and runs of the
//            program, if they are measured
//   measure  measures them from now on, which costs time itself
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "forward.h"

struct user { // as in the map: the lock has 4 bytes, and 4 follow for alignment
	__u64 lock;
	struct bucket bucket;
};

static void fail(const char *what, int error)
{
	fprintf(stderr, "load: %s: %s\n", what, strerror(error < 0 ? -error : error));
	exit(1);
}

static void from_hex(const char *text, __u8 *bytes, int len)
{
	for (int i = 0; i < len; i++)
		if (sscanf(text + 2 * i, "%2hhx", bytes + i) != 1)
			fail(text, EINVAL);
}

static int map_of(struct bpf_object *object, const char *name)
{
	return bpf_object__find_map_fd_by_name(object, name);
}

static int program_of(struct bpf_object *object, const char *name)
{
	return bpf_program__fd(bpf_object__find_program_by_name(object, name));
}

static void read_line(struct bpf_object *object, char *line)
{
	struct user user = {};
	struct make make = {};
	struct rule_key key = {};
	struct rule rule = {};
	char texts[6][64] = {};
	unsigned ports[4], index;
	if (sscanf(line, "user %u %llu %llu", &index, &user.bucket.rate, &user.bucket.burst) == 3) {
		if (bpf_map_update_elem(map_of(object, "users"), &index, &user, BPF_ANY))
			fail("user", errno);
	} else if (sscanf(line, "cipher %u %31s %63s", &make.index, make.algorithm, texts[0]) == 3) {
		from_hex(texts[0], make.key, sizeof(make.key));
		LIBBPF_OPTS(bpf_test_run_opts, run, .ctx_in = &make, .ctx_size_in = sizeof(make));
		int error = bpf_prog_test_run_opts(program_of(object, "make_cipher"), &run);
		if (error || run.retval)
			fail(make.algorithm, error ? errno : make.error);
	} else if (sscanf(line, "rule %63s %u %u %63s %63s %u %63s %u %63s %u %u %u %63s", texts[0], &ports[0], &ports[1],
			  texts[1], texts[2], &ports[2], texts[3], &ports[3], texts[4], &rule.user, &rule.transform,
			  &rule.cipher, texts[5]) == 13) {
		inet_pton(AF_INET, texts[0], &key.remote);
		inet_pton(AF_INET, texts[2], &rule.from);
		inet_pton(AF_INET, texts[3], &rule.to);
		from_hex(texts[1], key.id, ID_LEN);
		from_hex(texts[4], rule.id, ID_LEN);
		key.remote_port = htons(ports[0]), key.local_port = htons(ports[1]);
		rule.from_port = htons(ports[2]), rule.to_port = htons(ports[3]);
		rule.device = if_nametoindex(texts[5]);
		if (bpf_map_update_elem(map_of(object, "rules"), &key, &rule, BPF_ANY))
			fail("rule", errno);
	} else {
		fail(line, EINVAL);
	}
}

static void attach(struct bpf_object *object, int is_xdp, int device)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = device, .attach_point = BPF_TC_INGRESS);
	LIBBPF_OPTS(bpf_tc_opts, options, .prog_fd = program_of(object, "forward_tc"));
	int error;
	if (is_xdp) {
		error = bpf_xdp_attach(device, program_of(object, "forward_xdp"), XDP_FLAGS_DRV_MODE, NULL);
	} else {
		bpf_tc_hook_create(&hook);
		error = bpf_tc_attach(&hook, &options);
	}
	if (error)
		fail("attach", error);
}

static void detach(int is_xdp, int device)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = device, .attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS);
	if (is_xdp)
		bpf_xdp_detach(device, XDP_FLAGS_DRV_MODE, NULL);
	else
		bpf_tc_hook_destroy(&hook);
}

static void print_counters(struct bpf_object *object, int program)
{
	struct bpf_prog_info info = {};
	__u32 info_len = sizeof(info);
	struct rule_key key, *before = NULL;
	struct rule rule;
	struct user user;
	unsigned zero = 0;
	__u64 packets = 0, bytes = 0;
	for (; !bpf_map_get_next_key(map_of(object, "rules"), before, &key); before = &key)
		if (!bpf_map_lookup_elem(map_of(object, "rules"), &key, &rule))
			packets += rule.packets, bytes += rule.bytes;
	bpf_map_lookup_elem(map_of(object, "users"), &zero, &user);
	bpf_obj_get_info_by_fd(program, &info, &info_len);
	printf("%llu %llu %llu %llu %llu\n", packets, bytes, user.bucket.refused, info.run_time_ns, info.run_cnt);
	fflush(stdout);
}

int main(int count, char **given)
{
	char line[512];
	if (count < 4)
		fail("load OBJECT tc|xdp DEVICE...", EINVAL);
	int is_xdp = !strcmp(given[2], "xdp");
	struct bpf_object *object = bpf_object__open_file(given[1], NULL);
	if (!object)
		fail(given[1], errno);
	int error = bpf_object__load(object);
	if (error)
		fail("the kernel does not take the programs", error);
	while (fgets(line, sizeof(line), stdin) && strcmp(line, "go\n"))
		read_line(object, line);
	for (int i = 3; i < count; i++)
		attach(object, is_xdp, if_nametoindex(given[i]));
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		if (!strcmp(line, "count\n"))
			print_counters(object, program_of(object, is_xdp ? "forward_xdp" : "forward_tc"));
		else if (!strcmp(line, "measure\n") && bpf_enable_stats(BPF_STATS_RUN_TIME) < 0)
			fail("measure", errno);
	for (int i = 3; i < count; i++)
		detach(is_xdp, if_nametoindex(given[i]));
	return 0;
}
