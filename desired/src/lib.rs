//! What each relay and gateway should run: route tables and leg profiles.
//!
//! | module | holds |
//! |---|---|
//! | [`compile`](mod@compile) | from a plan to route tables and legs |
//! | [`packets`] | from packet flows to `[[packet]]` and `[packet]` sections |
//! | [`permissions`] | what relays may dial, and what grants cover |
//! | [`legs`] | from the legs that a plan counts on to profiles |
//! | [`route_table`] | which path a gateway puts a flow on |
//! | [`buffers`] | what legs need of a host's kernel |
//! | [`profile`] | how the connections of a leg are set up |
//! | [`connections`] | how many of them carry one stream |
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
