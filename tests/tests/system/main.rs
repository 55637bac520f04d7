//! Daemons together with programs of the machine: network namespaces, Slurm, systemd, packages, Prometheus, a browser,
//! compilers of C and C++; one module a subject, in one executable.

mod book;
mod c_programs;
mod launchers;
mod netns_doctor;
mod netns_hosts;
mod netns_merged;
mod netns_tcp;
mod package;
mod page;
mod prometheus;
mod ps_programs;
mod slurm;
mod systemd;
