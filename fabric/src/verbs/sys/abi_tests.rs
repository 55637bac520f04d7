//! Compares the committed declarations of `abi` with the installed header `infiniband/verbs.h`: a C program prints the sizes,
//! offsets and constants that the compiler sees, and each must equal ours. Skipped, with the reason printed, where the header
//! (Debian: libibverbs-dev) or a C compiler is not installed.

use super::abi;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// C expressions, each with our value.
type Compared = Vec<(String, u64)>;

/// Offsets of the fields of a structure of which `abi` declares the beginning.
macro_rules! begin {
    ($compared:ident, $name:ident: $($field:ident),*) => {
        $($compared.push((
            format!("offsetof(struct {}, {})", stringify!($name), stringify!($field)),
            offset_of!(abi::$name, $field) as u64,
        ));)*
    };
}

/// The same and the size, of a structure that `abi` declares to its end.
macro_rules! whole {
    ($compared:ident, $name:ident: $($field:ident),*) => {
        $compared.push((format!("sizeof(struct {})", stringify!($name)), size_of::<abi::$name>() as u64));
        begin!($compared, $name: $($field),*);
    };
}

#[rustfmt::skip]
fn structures() -> Compared {
    let mut compared = Compared::new();
    whole!(compared, ibv_context_ops: poll_cq, req_notify_cq, post_srq_recv, post_send);
    begin!(compared, ibv_context: device, ops, cmd_fd, async_fd);
    begin!(compared, ibv_comp_channel: context, fd);
    begin!(compared, ibv_cq: context, channel, cq_context, handle, cqe);
    begin!(compared, ibv_qp: context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num);
    whole!(compared, ibv_mr: context, pd, addr, length, handle, lkey, rkey);
    whole!(compared, ibv_device_attr: max_qp_wr, max_sge, max_cqe, max_qp_rd_atom, max_qp_init_rd_atom, max_srq_wr, phys_port_cnt);
    whole!(compared, ibv_port_attr: state, active_mtu, max_msg_sz);
    whole!(compared, ibv_gid_entry: gid, gid_index, port_num, gid_type, ndev_ifindex);
    whole!(compared, ibv_async_event: element, event_type);
    whole!(compared, ibv_wc: wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits);
    whole!(compared, ibv_global_route: dgid, flow_label, sgid_index, hop_limit, traffic_class);
    whole!(compared, ibv_ah_attr: grh, dlid, sl, src_path_bits, static_rate, is_global, port_num);
    whole!(compared, ibv_srq_attr: max_wr, max_sge, srq_limit);
    whole!(compared, ibv_srq_init_attr: srq_context, attr);
    whole!(compared, ibv_qp_cap: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data);
    whole!(compared, ibv_qp_init_attr: qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all);
    whole!(compared, ibv_qp_attr: qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit);
    whole!(compared, ibv_sge: addr, length, lkey);
    whole!(compared, ibv_send_wr: wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data);
    whole!(compared, ibv_recv_wr: wr_id, next, sg_list, num_sge);
    // Fields of unions have other names here.
    let mut renamed = |expression: &str, ours: usize| compared.push((expression.to_owned(), ours as u64));
    renamed("sizeof(union ibv_gid)", size_of::<abi::ibv_gid>());
    renamed("_Alignof(union ibv_gid)", align_of::<abi::ibv_gid>());
    renamed("offsetof(struct ibv_send_wr, wr.rdma.remote_addr)", offset_of!(abi::ibv_send_wr, rdma.remote_addr));
    renamed("offsetof(struct ibv_send_wr, wr.rdma.rkey)", offset_of!(abi::ibv_send_wr, rdma.rkey));
    renamed("offsetof(struct ibv_send_wr, qp_type)", offset_of!(abi::ibv_send_wr, _qp_type));
    renamed("offsetof(struct ibv_send_wr, bind_mw)", offset_of!(abi::ibv_send_wr, _bind_mw_or_tso));
    compared
}

#[test]
fn declarations_are_those_of_the_installed_header() {
    let mut compared = structures();
    compared.extend(abi::CONSTANTS.iter().map(|(name, ours)| ((*name).to_owned(), u64::from(*ours))));
    if !Path::new(HEADER).exists() {
        println!("skipped: {HEADER} is not installed (Debian, Ubuntu: apt-get install libibverbs-dev)");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("abi.c"), directory.path().join("abi"));
    let mut text = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for (expression, _) in &compared {
        writeln!(text, "printf(\"%llu\\n\", (unsigned long long)({expression}));").unwrap();
    }
    text.push_str("return 0;\n}\n");
    std::fs::write(&source, text).unwrap();
    let compiler = Command::new("cc").arg("-o").arg(&program).arg(&source).output();
    let Ok(compiled) = compiler else {
        println!("skipped: no C compiler (cc) is installed");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&program).output().unwrap().stdout;
    let printed = String::from_utf8(printed).unwrap();
    let theirs: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), compared.len());
    let differ: Vec<_> = compared.iter().zip(&theirs).filter(|((_, ours), theirs)| ours != *theirs).collect();
    assert!(differ.is_empty(), "ours and the header's: {differ:#?}");
    println!("{} sizes, offsets and constants are the header's", compared.len());
}
