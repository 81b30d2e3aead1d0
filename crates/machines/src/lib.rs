//! Machines in clouds: from the file of machines to Terraform's JSON, with prices.
//!
//! Nothing here runs: the caller writes the document and starts Terraform.
//!
//! | module | holds |
//! |---|---|
//! | `order` | machines with type and price |
//! | `document` | the document of all clouds |
//! | `aws`, `azure`, `gcp`, `ibm` | the resources of each cloud |
//! | `parts` | what they are made of, and what they share |
//! | `setup` | the script that a machine runs once |

mod aws;
mod azure;
mod document;
mod gcp;
mod ibm;
mod order;
mod parts;
mod setup;

pub use document::document;
pub use order::{Order, OrderError, order};
pub use parts::Tag;
