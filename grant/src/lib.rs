//! Who may send what where: identities, grants, authenticated hop headers, destination policy.
