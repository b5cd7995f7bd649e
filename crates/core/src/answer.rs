//! What a caller is told over HTTP: status, headers and body.
