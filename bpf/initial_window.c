// SPDX-License-Identifier: Apache-2.0
//
// The initial congestion window of single connections (BPF_PROG_TYPE_SOCK_OPS).
//
// Whoever wants one for a socket stores an `initial_window` with that socket. A listener's is
// copied to every connection that it accepts (BPF_F_CLONE). Sockets without one stay as they are,
// so the program disturbs nobody else in its control group.

#include "helpers.h"

// Laid out as `Wanted` in net/src/initial_window.rs.
struct initial_window {
	// The window, in segments; the most of it where `bytes_per_s` is not 0.
	__u32 segments;
	__u32 reserved;
	// Not 0: the window is what leaves at this rate in the handshake's round-trip time, and a
	// quarter on top.
	__u64 bytes_per_s;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct initial_window);
} initial_windows SEC(".maps");

// The kernel's own initial window [RFC 6928]; no profile asks for less by its rate.
#define KERNEL_SEGMENTS 10
// Of the first packets' payload, where the connection does not say.
#define USUAL_MSS 1448

static __u32 window_of(const struct initial_window *wanted, __u32 srtt_us, __u32 mss)
{
	__u64 segments;

	if (!wanted->bytes_per_s || !srtt_us)
		return wanted->segments;
	if (!mss)
		mss = USUAL_MSS;
	// At 100 Gbit/s and 10 s this is 2^57: no overflow.
	segments = wanted->bytes_per_s / 1000 * srtt_us / 1000 / mss;
	segments += segments / 4;
	if (segments < KERNEL_SEGMENTS)
		segments = KERNEL_SEGMENTS;
	if (segments > wanted->segments)
		segments = wanted->segments;
	return segments;
}

SEC("sockops")
int initial_window(struct bpf_sock_ops *connection)
{
	struct initial_window *wanted;
	struct bpf_sock *socket;
	int segments;

	if (connection->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    connection->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	socket = connection->sk;
	if (!socket)
		return 1;
	wanted = bpf_sk_storage_get(&initial_windows, socket, 0, 0);
	if (!wanted)
		return 1;
	// The kernel counts the smoothed time in eighths.
	segments = window_of(wanted, connection->srtt_us >> 3, connection->mss_cache);
	// Refused after the first data only, and a connection that just opened has sent none.
	bpf_setsockopt(connection, SOL_TCP, TCP_BPF_IW, &segments, sizeof(segments));
	return 1;
}

// The helpers above ask for no other licence.
char _license[] SEC("license") = "Apache-2.0";
