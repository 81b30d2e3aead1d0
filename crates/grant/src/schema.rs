//! JSON schemas of keys, grants and destinations as files hold them.

use tradewind_units::text_schema;

use crate::{
    Destination, DestinationRule, IdentityKey, OperatorPublicKey, PublicIdentity, SignedGrant,
};

text_schema!(Destination, "HOST:PORT", "^.+:[0-9]+$", "db.example.com:443");
text_schema!(DestinationRule, "HOSTS:PORTS", r"^.+:([0-9]+(-[0-9]+)?|\*)$", "10.0.0.0/8:443");
text_schema!(IdentityKey, "secret identity", r"^\s*twidkey_[a-z2-7]+\s*$", "twidkey_...");
text_schema!(PublicIdentity, "identity", r"^\s*twid_[a-z2-7]+\s*$", "twid_...");
text_schema!(OperatorPublicKey, "operator's key", r"^\s*twop_[a-z2-7]+\s*$", "twop_...");
text_schema!(SignedGrant, "grant", r"^\s*twgrant_[a-z2-7]+\s*$", "twgrant_...");
