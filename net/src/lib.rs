//! The kernel: socket options, splice, namespaces, TUN and packet sockets.
