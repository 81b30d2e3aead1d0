/* SPDX-License-Identifier: Apache-2.0 */
//
// What the programs here use of the kernel's helpers. Their usual header comes with libbpf, of which
// nothing else is needed. None of these asks for the GPL.

#ifndef TRADEWIND_HELPERS_H
#define TRADEWIND_HELPERS_H

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define __inline_always static inline __attribute__((always_inline))

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) =
	(void *)BPF_FUNC_map_lookup_elem;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static long (*const bpf_setsockopt)(void *context, int level, int option, void *value,
				    int length) = (void *)BPF_FUNC_setsockopt;
static long (*const bpf_getsockopt)(void *context, int level, int option, void *value,
				    int length) = (void *)BPF_FUNC_getsockopt;
static long (*const bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *context, int flags) =
	(void *)BPF_FUNC_sock_ops_cb_flags_set;
static __u64 (*const bpf_get_socket_cookie)(void *context) = (void *)BPF_FUNC_get_socket_cookie;
static __u64 (*const bpf_get_netns_cookie)(void *context) = (void *)BPF_FUNC_get_netns_cookie;
static void *(*const bpf_sk_storage_get)(void *map, void *socket, void *value,
					 __u64 flags) = (void *)BPF_FUNC_sk_storage_get;
static long (*const bpf_sk_storage_delete)(void *map, void *socket) =
	(void *)BPF_FUNC_sk_storage_delete;
static long (*const bpf_spin_lock)(struct bpf_spin_lock *lock) = (void *)BPF_FUNC_spin_lock;
static long (*const bpf_spin_unlock)(struct bpf_spin_lock *lock) = (void *)BPF_FUNC_spin_unlock;
static long (*const bpf_ringbuf_output)(void *ring, void *data, __u64 size,
					__u64 flags) = (void *)BPF_FUNC_ringbuf_output;

// Of <sys/socket.h> and <netinet/in.h>, whose own headers do not go with this target.
#define SOL_SOCKET 1
#define SO_RCVBUF 8
#define SO_MAX_PACING_RATE 47
#define SOL_TCP 6
#define FAMILY_IPV4 2

#endif
