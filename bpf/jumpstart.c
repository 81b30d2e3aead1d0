// SPDX-License-Identifier: Apache-2.0
//
// How connections start, by what was learned of their destination (BPF_PROG_TYPE_SOCK_OPS).
//
// User space puts a `setting` for each destination into `settings`. A connection that opens takes
// the one of the longest prefix that holds its peer: an initial window, and where there is a rate,
// a share of it that is lent to nobody else at the same time. The rules are those of the crate
// `tradewind-jumpstart` (its `start` and `strict`); here they are kept for every connection of the
// control group, whoever opened it.
//
// Nothing outlives user space: a setting ends at its `expires_ns` by this program's own look at
// the clock, and the program is detached when the process that attached it dies.

#include "helpers.h"

// The kernel's own initial window [RFC 6928].
#define KERNEL_SEGMENTS 10
// Loans of a destination that are told apart; further ones are added to the one that ends last.
#define LOANS 8
// Learned round-trip times that a loan lasts, and measured ones after which its limit is lifted.
#define LOAN_RTTS 4
// Loans that a crowd is remembered for.
#define CROWD_MEMORY_LOANS 25
#define NO_LIMIT 0xffffffffU
// What a connection that is held to a share is watched for.
#define WATCHED (BPF_SOCK_OPS_RTT_CB_FLAG | BPF_SOCK_OPS_RETRANS_CB_FLAG)
#define MILLISECOND_NS 1000000ULL

// Laid out as `Rules` in net/src/jumpstart.rs. Set once, before the program is loaded.
struct rules {
	// Of the network namespace whose connections are meant; 0: all.
	__u64 namespace;
	// Share of connections that start by default for comparison, of 2^32.
	__u32 control;
	// A share of a rate that carries fewer segments in a round-trip time brings nothing.
	__u32 least_segments;
	// Most connections that may borrow from a destination at once; 0: any number.
	__u32 at_once;
	// Receive buffer; 0: the kernel's.
	__u32 receive_bytes;
	// Not 0: only sockets in `own` are meant.
	__u32 own_alone;
	__u32 reserved;
};
const volatile struct rules rules;

// `Setting` in net/src/jumpstart.rs.
struct setting {
	// Names its `budget`.
	__u32 id;
	__u32 segments;
	// For all that start at once; 0: no limit.
	__u64 bytes_per_s;
	// By CLOCK_MONOTONIC.
	__u64 expires_ns;
	// 0: not known.
	__u32 rtt_us;
	__u32 reserved;
};

// A prefix in IPv6's form; IPv4 addresses are mapped (::ffff:0:0/96).
struct destination {
	__u32 length;
	__u32 address[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct destination);
	__type(value, struct setting);
} settings SEC(".maps");

// The sockets that user space counts as its own: those it dials with, and listeners, whose entries
// the kernel copies to every connection that they accept. Each goes with its socket.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u32);
} own SEC(".maps");

struct loan {
	__u64 until_ns;
	__u64 bytes_per_s;
	__u64 borrowers;
};

// `Budget` in net/src/jumpstart.rs.
struct budget {
	struct bpf_spin_lock lock;
	__u32 crowd;
	__u64 crowd_until_ns;
	struct loan loans[LOANS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct budget);
} budgets SEC(".maps");

// What a connection that jumped has to remember until its loan is over.
struct start {
	__u32 id;
	__u32 segments;
	// The limit that the application had set.
	__u32 limit_before;
	// Whether a limit of ours is in force.
	__u32 limited;
	__u32 rtts_left;
	// Callbacks that were asked for here.
	__u32 callbacks;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct start);
} starts SEC(".maps");

// Parsed to `ProgramEvent` in net/src/jumpstart.rs.
enum { JUMPED = 1, CONTROL = 2, FIRST_FLIGHT_LOST = 3 };
struct event {
	__u64 connection;
	__u32 what;
	__u32 id;
	__u32 segments;
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

// How much could not be told.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost_events SEC(".maps");

__inline_always void tell(__u64 connection, __u32 what, __u32 id, __u32 segments)
{
	struct event event = { connection, what, id, segments, 0 };
	__u32 only = 0;
	__u64 *count;

	// Where nobody reads, the ring fills and what comes later is dropped.
	if (!bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_NO_WAKEUP))
		return;
	count = bpf_map_lookup_elem(&lost_events, &only);
	if (count)
		__sync_fetch_and_add(count, 1);
}

// Whether connections like this one are meant at all.
__inline_always int is_meant(struct bpf_sock_ops *connection)
{
	struct bpf_sock *socket;

	if (rules.namespace && bpf_get_netns_cookie(connection) != rules.namespace)
		return 0;
	if (!rules.own_alone)
		return 1;
	socket = connection->sk;
	if (!socket)
		return 0;
	return bpf_sk_storage_get(&own, socket, 0, 0) != 0;
}

// The setting in force for the peer of `connection`.
static __attribute__((noinline)) struct setting *setting_of(struct bpf_sock_ops *connection)
{
	struct destination peer = { .length = 128 };
	__u32 family = connection->family, ipv4 = connection->remote_ip4;
	struct setting *setting;

	peer.address[0] = connection->remote_ip6[0];
	peer.address[1] = connection->remote_ip6[1];
	peer.address[2] = connection->remote_ip6[2];
	peer.address[3] = connection->remote_ip6[3];
	// The kernel lets a program read its context at fixed places only, which this keeps the compiler
	// from making one of a place that depends on the family.
	asm volatile("" : "+r"(ipv4), "+r"(family) : : "memory");
	if (family == FAMILY_IPV4) {
		peer.address[0] = 0;
		peer.address[1] = 0;
		peer.address[2] = __builtin_bswap32(0xffff);
		peer.address[3] = ipv4;
	}
	if (!is_meant(connection))
		return 0;
	setting = bpf_map_lookup_elem(&settings, &peer);
	if (!setting || setting->expires_ns <= bpf_ktime_get_ns())
		return 0;
	return setting;
}

// A share of `setting`'s rate that is lent to nobody else; 0: nothing worth it is left. As
// `Loans::lend` of the crate `jumpstart`.
__inline_always __u64 lend(struct budget *budget, const struct setting *setting, __u64 least)
{
	__u64 now = bpf_ktime_get_ns(), span = setting->rtt_us * 1000ULL * LOAN_RTTS;
	__u64 borrowers = 0, lent = 0, share = 0, latest = 0;
	__u32 at_once = rules.at_once, free = LOANS, last = 0, crowd, i;

	if (span < MILLISECOND_NS)
		span = MILLISECOND_NS;
	bpf_spin_lock(&budget->lock);
#pragma unroll
	for (i = 0; i < LOANS; i++) {
		struct loan *loan = &budget->loans[i];

		if (loan->until_ns <= now) {
			free = i;
			continue;
		}
		borrowers += loan->borrowers;
		lent += loan->bytes_per_s;
		if (loan->until_ns >= latest) {
			latest = loan->until_ns;
			last = i;
		}
	}
	if (!at_once || borrowers < at_once) {
		struct loan *loan;

		crowd = now >= budget->crowd_until_ns ? 0 : budget->crowd;
		if (crowd < borrowers + 1)
			crowd = borrowers + 1;
		share = setting->bytes_per_s / crowd;
		if (lent >= setting->bytes_per_s)
			share = 0;
		else if (share > setting->bytes_per_s - lent)
			share = setting->bytes_per_s - lent;
		if (share < least)
			share = 0;
		// Also those who get nothing belong to the crowd.
		budget->crowd = crowd;
		budget->crowd_until_ns = now + span * CROWD_MEMORY_LOANS;
		// At fixed places: without CAP_PERFMON no other may be reached.
#pragma unroll
		for (i = 0; i < LOANS; i++) {
			loan = &budget->loans[i];
			asm volatile("" : "+r"(loan));
			if (i == free) {
				loan->until_ns = now + span;
				loan->borrowers = 1;
				loan->bytes_per_s = share;
			} else if (free == LOANS && i == last) {
				if (loan->until_ns < now + span)
					loan->until_ns = now + span;
				loan->borrowers++;
				loan->bytes_per_s += share;
			}
		}
	}
	bpf_spin_unlock(&budget->lock);
	return share;
}

// Whether the handshake went over the path that was learned [RFC 9959]. The kernel counts its
// smoothed time in eighths.
__inline_always int same_path(__u32 srtt_eighths, __u32 learned_us)
{
	__u64 rtt = srtt_eighths >> 3, learned = learned_us;

	if (!rtt || !learned)
		return 1;
	return rtt * 2 > learned && rtt < learned * 10;
}

// Even over neighbouring numbers (the finalizer of splitmix64).
__inline_always __u32 mixed(__u64 number)
{
	number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9ULL;
	number = (number ^ (number >> 27)) * 0x94d049bb133111ebULL;
	return (__u32)(number ^ (number >> 31));
}

// Asks for `wanted` callbacks besides those that others asked for; returns what that added.
__inline_always __u32 ask_callbacks(struct bpf_sock_ops *connection, __u32 wanted)
{
	__u32 others = connection->bpf_sock_ops_cb_flags;

	bpf_sock_ops_cb_flags_set(connection, others | wanted);
	return wanted & ~others;
}

// Holds `connection` to `share`, or to the application's own limit where that is lower, for its
// first round trips, and watches its first flight. Returns 0 where it cannot.
__inline_always int hold(struct bpf_sock_ops *connection, const struct setting *setting,
			 __u64 share)
{
	__u32 limit = share < NO_LIMIT ? share : NO_LIMIT, before = NO_LIMIT;
	struct bpf_sock *socket = connection->sk;
	struct start *start;

	if (!socket)
		return 0;
	// Older kernels do not tell; then no application's limit is known.
	if (bpf_getsockopt(connection, SOL_SOCKET, SO_MAX_PACING_RATE, &before, sizeof(before)))
		before = NO_LIMIT;
	// Another process's program holds it: of two limits only the last one set could be taken back.
	if (before != NO_LIMIT && (connection->bpf_sock_ops_cb_flags & WATCHED) == WATCHED)
		return 0;
	start = bpf_sk_storage_get(&starts, socket, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!start)
		return 0;
	start->id = setting->id;
	start->segments = setting->segments;
	start->limit_before = before;
	start->rtts_left = LOAN_RTTS;
	start->limited = limit < before;
	if (start->limited && bpf_setsockopt(connection, SOL_SOCKET, SO_MAX_PACING_RATE, &limit,
					     sizeof(limit))) {
		bpf_sk_storage_delete(&starts, socket);
		return 0;
	}
	start->callbacks = ask_callbacks(connection, WATCHED);
	return 1;
}

// Takes back what `hold` did.
__inline_always void release(struct bpf_sock_ops *connection, struct bpf_sock *socket,
			     struct start *start)
{
	__u32 before = start->limit_before, callbacks = start->callbacks;

	if (start->limited)
		bpf_setsockopt(connection, SOL_SOCKET, SO_MAX_PACING_RATE, &before,
			       sizeof(before));
	bpf_sock_ops_cb_flags_set(connection, connection->bpf_sock_ops_cb_flags & ~callbacks);
	bpf_sk_storage_delete(&starts, socket);
}

// A connection opens.
static __attribute__((noinline)) int begin(struct bpf_sock_ops *connection)
{
	struct setting *setting = setting_of(connection);
	__u32 window = connection->snd_cwnd, mss = connection->mss_cache;
	__u32 srtt = connection->srtt_us;
	__u64 cookie, share = 0, least;
	struct budget *budget;
	__u32 segments;

	if (!setting)
		return 0;
	segments = setting->segments;
	// Fewer than usual: its route says so, or a SYN was lost. As many by itself: nothing to do.
	if (window < KERNEL_SEGMENTS || window >= segments)
		return 0;
	if (!same_path(srtt, setting->rtt_us))
		return 0;
	cookie = bpf_get_socket_cookie(connection);
	if (mixed(cookie) < rules.control) {
		tell(cookie, CONTROL, setting->id, window);
		return 0;
	}
	if (setting->bytes_per_s) {
		__u32 id = setting->id;

		if (!setting->rtt_us)
			return 0;
		budget = bpf_map_lookup_elem(&budgets, &id);
		if (!budget)
			return 0;
		least = (__u64)rules.least_segments * mss * 1000000 / setting->rtt_us;
		share = lend(budget, setting, least);
		if (!share || !hold(connection, setting, share))
			return 0;
	}
	// Refused after the first data only, as when some went with the SYN.
	if (bpf_setsockopt(connection, SOL_TCP, TCP_BPF_IW, &segments, sizeof(segments)))
		return 0;
	tell(cookie, JUMPED, setting->id, segments);
	return 0;
}

// A round trip was measured.
static __attribute__((noinline)) int measured(struct bpf_sock_ops *connection)
{
	struct bpf_sock *socket = connection->sk;
	struct start *start;

	if (!socket)
		return 0;
	start = bpf_sk_storage_get(&starts, socket, 0, 0);
	if (!start)
		return 0;
	if (start->rtts_left > 1) {
		start->rtts_left--;
		return 0;
	}
	release(connection, socket, start);
	return 0;
}

// Something was sent again. It counts as the first flight's until twice its window has arrived:
// what slow start adds later is not our doing.
static __attribute__((noinline)) int sent_again(struct bpf_sock_ops *connection)
{
	__u64 arrived = connection->bytes_acked;
	struct bpf_sock *socket = connection->sk;
	__u32 mss = connection->mss_cache;
	struct start *start;

	if (!socket)
		return 0;
	start = bpf_sk_storage_get(&starts, socket, 0, 0);
	if (!start || !start->segments)
		return 0;
	if (arrived <= 2ULL * start->segments * mss)
		tell(bpf_get_socket_cookie(connection), FIRST_FLIGHT_LOST, start->id,
		     start->segments);
	// Told once.
	start->segments = 0;
	return 0;
}

// A socket is about to dial, or listens: its buffer decides how large a first flight it can take,
// and only before the handshake. It is never made smaller.
static __attribute__((noinline)) int prepare(struct bpf_sock_ops *connection)
{
	__u32 bytes = rules.receive_bytes, own = 0;

	if (!bytes)
		return 0;
	if (connection->op == BPF_SOCK_OPS_TCP_CONNECT_CB) {
		if (!setting_of(connection))
			return 0;
	} else if (!is_meant(connection)) {
		return 0;
	}
	// The kernel tells twice of what it was asked for.
	if (!bpf_getsockopt(connection, SOL_SOCKET, SO_RCVBUF, &own, sizeof(own)) &&
	    own / 2 >= bytes)
		return 0;
	bpf_setsockopt(connection, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	return 0;
}

SEC("sockops")
int jumpstart(struct bpf_sock_ops *connection)
{
	__u32 op = connection->op;

	if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		begin(connection);
	else if (op == BPF_SOCK_OPS_RTT_CB)
		measured(connection);
	else if (op == BPF_SOCK_OPS_RETRANS_CB)
		sent_again(connection);
	else if (op == BPF_SOCK_OPS_TCP_CONNECT_CB || op == BPF_SOCK_OPS_TCP_LISTEN_CB)
		prepare(connection);
	// BPF_SOCK_OPS_RWND_INIT stays unanswered: an answer holds a first receive window below its
	// buffer, or promises more than that has, and takes the place of what the route says.
	return 1;
}

// The helpers above ask for no other licence.
char _license[] SEC("license") = "Apache-2.0";
