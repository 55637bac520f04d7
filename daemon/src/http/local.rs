//! Whether a request over a loopback address was meant for it. A page of a browser on this host may have any name lead to loopback
//! (DNS rebinding) and would then read what this process shows; the browser still says that name. It must not look at anything
//! else of a request.

use hyper::Uri;
use hyper::header::{self, HeaderMap};
use std::net::{IpAddr, SocketAddr};

/// The answer to a request that is meant for another host.
pub(super) const REFUSAL: &str =
    "forbidden host name: on a loopback address, use localhost, 127.0.0.1, [::1] or this host's own name\n";

/// Is the own end of a connection reached from this host only?
pub(super) fn is_loopback(own: SocketAddr) -> bool {
    own.ip().to_canonical().is_loopback()
}

/// Does a request name this host as its own programs do, or nobody?
pub(super) fn is_meant(uri: &Uri, headers: &HeaderMap) -> bool {
    let hosts = headers.get_all(header::HOST).iter();
    hosts
        .map(|host| host.to_str().ok())
        .chain(uri.authority().map(|whole| Some(whole.as_str())))
        .all(|said| said.is_some_and(is_local))
}

/// A name or an address, with a port or without.
fn is_local(said: &str) -> bool {
    let host = match said.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(host, _)| host),
        None => said.split_once(':').map_or(said, |(host, _)| host),
    };
    let is_address = host.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback());
    // A host may lead its own name to a loopback address: Debian does, to 127.0.1.1.
    let is_own = || crate::host::name().is_some_and(|own| host.eq_ignore_ascii_case(&own));
    is_address || host.eq_ignore_ascii_case("localhost") || is_own()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_host_are_known_and_others_are_not() {
        let own = crate::host::name().unwrap();
        assert!(is_local(&own) && is_local(&format!("{own}:9095")), "{own}");
        assert!(!is_local(&format!("{own}.evil.example")));
        for said in [
            "localhost",
            "LocalHost:9095",
            "127.0.0.1",
            "127.0.0.2:1",
            "[::1]:9095",
            "[::1]",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(is_local(said), "{said}");
        }
        for said in [
            "",
            "evil.example",
            "evil.example:9095",
            "localhost.evil.example",
            "10.0.0.1",
            "127.0.0.1.evil.example",
            "[::2]",
            "[",
            "::1",
        ] {
            assert!(!is_local(said), "{said}");
        }
    }

    #[test]
    fn whoever_names_nobody_is_no_browser_and_each_name_counts() {
        let meant = |uri: &str, hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().unwrap());
            }
            is_meant(&uri.parse().unwrap(), &headers)
        };
        assert!(meant("/status", &[]) && meant("/status", &["localhost:9095"]));
        assert!(meant("http://127.0.0.1:9095/status", &["127.0.0.1:9095"]));
        assert!(!meant("/status", &["localhost", "evil.example"]) && !meant("/status", &["\u{e9}"]));
        assert!(!meant("http://evil.example/status", &["localhost"]));
    }
}
