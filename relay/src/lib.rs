//! The stream plane: relays that split TCP sessions, and gateways beside applications.
