// SPDX-License-Identifier: MIT OR Apache-2.0
//
// ends send FROM PORT TO PORT RATE BURST SECONDS HEX: sends one packet again and again, at rate 0 without a pause; prints
//          how many left, how many bursts left late, and the CPU time in nanoseconds
// ends sink ADDRESS PORT: counts packets until it is told to end; prints how many, and the last one in hexadecimal
// ends answer ADDRESS PORT HEX: answers one packet, and prints where it came from
// ends merge ADDRESS PORT: a socket for which the kernel merges packets (UDP_GRO), and that reads nothing
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BURST_MAX 64

static volatile sig_atomic_t is_over;

static void end(int signal)
{
	(void)signal;
	is_over = 1;
}

static double now(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static struct sockaddr_in address(char **given)
{
	struct sockaddr_in it = {.sin_family = AF_INET, .sin_port = htons(atoi(given[1]))};
	inet_pton(AF_INET, given[0], &it.sin_addr);
	return it;
}

static int bound(char **given)
{
	struct sockaddr_in at = address(given);
	int socket_ = socket(AF_INET, SOCK_DGRAM, 0), size = 8 << 20;
	setsockopt(socket_, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	setsockopt(socket_, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	if (bind(socket_, (void *)&at, sizeof(at))) {
		perror("ends: bind");
		exit(1);
	}
	return socket_;
}

static void send_all(char **given)
{
	static unsigned char packet[2048];
	struct sockaddr_in to = address(given + 2);
	int socket_ = bound(given), burst = atoi(given[5]), len = strlen(given[7]) / 2;
	double rate = atof(given[4]), seconds = atof(given[6]);
	for (int i = 0; i < len; i++)
		sscanf(given[7] + 2 * i, "%2hhx", packet + i);
	if (connect(socket_, (void *)&to, sizeof(to))) {
		perror("ends: connect");
		exit(1);
	}
	struct iovec part = {packet, len};
	struct mmsghdr messages[BURST_MAX] = {};
	for (int i = 0; i < BURST_MAX; i++)
		messages[i].msg_hdr.msg_iov = &part, messages[i].msg_hdr.msg_iovlen = 1;
	long sent = 0, late = 0;
	double cpu = now(CLOCK_PROCESS_CPUTIME_ID), begin = now(CLOCK_MONOTONIC), time = begin;
	while (rate ? sent < rate * seconds : time < begin + seconds) {
		double due = rate ? begin + sent / rate : begin;
		do
			sched_yield(); // lets the others run; a sleep would be longer than the spaces
		while ((time = now(CLOCK_MONOTONIC)) < due);
		late += rate && time > due + 0.001;
		int left = sendmmsg(socket_, messages, burst, 0);
		sent += left > 0 ? left : 1; // what could not leave is lost
	}
	printf("%ld %ld %.0f\n", sent, late, (now(CLOCK_PROCESS_CPUTIME_ID) - cpu) * 1e9);
}

static void sink(char **given)
{
	static unsigned char packets[BURST_MAX][2048];
	struct iovec parts[BURST_MAX];
	struct mmsghdr messages[BURST_MAX] = {};
	int socket_ = bound(given);
	long received = 0;
	unsigned len = 0;
	for (int i = 0; i < BURST_MAX; i++) {
		parts[i] = (struct iovec){packets[i], sizeof(packets[i])};
		messages[i].msg_hdr.msg_iov = parts + i, messages[i].msg_hdr.msg_iovlen = 1;
	}
	static unsigned char last[2048];
	while (!is_over) {
		int got = recvmmsg(socket_, messages, BURST_MAX, MSG_DONTWAIT, NULL);
		if (got > 0) {
			received += got;
			len = messages[got - 1].msg_len;
			memcpy(last, packets[got - 1], len);
		}
		if (got < BURST_MAX)
			usleep(300);
	}
	printf("%ld ", received);
	for (unsigned i = 0; i < len; i++)
		printf("%02x", last[i]);
	printf("\n");
}

static void answer(char **given)
{
	static unsigned char packet[2048];
	struct sockaddr_in from;
	socklen_t from_len = sizeof(from);
	int socket_ = bound(given), len = strlen(given[2]) / 2;
	if (recvfrom(socket_, packet, sizeof(packet), 0, (void *)&from, &from_len) < 0)
		return;
	for (int i = 0; i < len; i++)
		sscanf(given[2] + 2 * i, "%2hhx", packet + i);
	sendto(socket_, packet, len, 0, (void *)&from, from_len);
	printf("%d\n", ntohs(from.sin_port));
}

int main(int count, char **given)
{
	struct sigaction action = {.sa_handler = end};
	sigaction(SIGTERM, &action, NULL);
	if (count == 10 && !strcmp(given[1], "send")) {
		send_all(given + 2);
	} else if (count == 4 && !strcmp(given[1], "sink")) {
		sink(given + 2);
	} else if (count == 5 && !strcmp(given[1], "answer")) {
		answer(given + 2);
	} else if (count == 4 && !strcmp(given[1], "merge")) {
		int on = 1;
		setsockopt(bound(given + 2), IPPROTO_UDP, UDP_GRO, &on, sizeof(on));
		while (!is_over)
			pause();
	} else {
		fprintf(stderr, "ends: see the comment in ends.c\n");
		return 2;
	}
	return 0;
}
