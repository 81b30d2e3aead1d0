//! The desired state of each relay and gateway: route tables and leg profiles.
//!
//! | module | holds |
//! |---|---|
//! | [`compile`](mod@compile) | from a plan to route tables and legs |
//! | [`packets`] | from packet flows to `[[packet]]` and `[packet]` sections |
//! | [`permissions`] | the addresses that relays may dial, and the terms of grants |
//! | [`legs`] | from the legs that a plan assumes to profiles |
//! | [`route_table`] | the paths that a gateway puts flows on |
//! | [`buffers`] | the buffer limits that legs need from a host's kernel |
//! | [`profile`] | the options of a leg's connections |
//! | [`connections`] | the number of connections that carry one stream |
//!
//! Relays and gateways read these, never plans.

pub mod buffers;
pub mod compile;
pub mod connections;
pub mod legs;
pub mod packets;
pub mod permissions;
pub mod profile;
pub mod route_table;

pub use buffers::{BufferNeeds, HostBuffers};
pub use compile::{Desired, DesiredGateway, DesiredRelay, Fallbacks, Inventory, compile};
pub use connections::Connections;
pub use legs::{LegTo, ProcessLegs};
pub use packets::{
    DesiredPackets, GatewayPacket, PacketEnds, PacketInventory, RelayPacket, compile_packets,
};
pub use permissions::{DialPolicy, GrantTerms};
pub use profile::{Encryption, LegProfile};
pub use route_table::{DesiredError, Hop, Route, RouteTable};
