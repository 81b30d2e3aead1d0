//! Hosts in network namespaces joined by the emulated WAN.
