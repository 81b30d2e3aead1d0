//! Limits of sessions, memory, rates and time, and admission within them.
//!
//! | module | holds |
//! |---|---|
//! | `admission` | admission of connections within limits, and eviction |
//! | [`buffers`] | the check of this host's limits of socket buffers |
//! | `capacity` | the number of sessions that memory and descriptors allow |
//! | [`live`], [`timeouts`] | the limits and timeouts that a reload changes |
//! | [`quota`], [`memory`] | quotas of each gateway, grant and source, and of all together |

pub(crate) mod admission;
pub mod buffers;
pub(crate) mod capacity;
pub mod live;
pub mod memory;
pub mod quota;
pub mod timeouts;
