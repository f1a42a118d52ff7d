//! How much memory this process may have and how much it has: read from cgroup and proc files. What cannot be read says
//! nothing; nothing here fails.

use std::path::{Component, Path, PathBuf};

/// Where not even the machine's memory can be read, which is never on Linux.
const UNKNOWN_MEMORY_BYTES: u64 = 1 << 30;

/// Lines of `/proc/self/cgroup` looked at: there are as many as hierarchies, some dozen.
const MAX_CGROUPS: usize = 64;

/// Bytes of memory that this process may use: the tightest limit of the cgroups it is in, as far up as they are visible, and
/// never more than the machine has.
pub(crate) fn memory_limit() -> u64 {
    memory_limit_under(Path::new("/"))
}

/// With `/proc` and `/sys` below another root, for tests.
fn memory_limit_under(root: &Path) -> u64 {
    let cgroups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = cgroups.lines().take(MAX_CGROUPS).filter_map(|line| cgroup_limit(root, line));
    let machine = std::fs::read_to_string(root.join("proc/meminfo")).ok();
    let machine = machine.and_then(|text| kilobytes(&text, "MemTotal:"));
    limits.chain(machine).min().unwrap_or(UNKNOWN_MEMORY_BYTES)
}

/// One line of `/proc/self/cgroup`, `number:controllers:path`; version 2 has number 0 and no controllers.
fn cgroup_limit(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (mount, file) = match (number, controllers) {
        ("0", "") => ("sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|controller| controller == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let mount = root.join(mount);
    // Inside a container the path may be the host's, of which only the last part, or nothing, is mounted.
    let parts = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
    let own = mount.join(parts.collect::<PathBuf>());
    let above = own.ancestors().take_while(|directory| directory.starts_with(&mount));
    let limits = above.filter_map(|directory| std::fs::read_to_string(directory.join(file)).ok());
    limits.filter_map(|text| bytes(&text)).min()
}

/// A limit as the kernel writes it; `max` is none.
fn bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes > 0)
}

/// The resident set of this process in bytes.
pub(super) fn resident_bytes() -> Option<u64> {
    kilobytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// In bytes, the figure of a line like `VmRSS:     1234 kB`.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:       16384 kB\nMemFree:        1 kB\n");

    /// What is made of these files.
    fn limit(files: &[(&str, &str)]) -> u64 {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        memory_limit_under(root.path())
    }

    #[test]
    fn a_container_with_a_namespace_of_its_own() {
        let own = ("proc/self/cgroup", "0::/\n");
        assert_eq!(limit(&[MACHINE, own, ("sys/fs/cgroup/memory.max", "4194304\n")]), 4 * MIB);
        assert_eq!(limit(&[MACHINE, own, ("sys/fs/cgroup/memory.max", "max\n")]), 16 * MIB);
    }

    #[test]
    fn the_tightest_limit_on_the_way_up_counts() {
        let own = ("proc/self/cgroup", "0::/kubepods.slice/pod1.slice/broker.scope\n");
        let limits = |pod: &'static str, container: &'static str| {
            limit(&[
                MACHINE,
                own,
                ("sys/fs/cgroup/kubepods.slice/memory.max", "max\n"),
                ("sys/fs/cgroup/kubepods.slice/pod1.slice/memory.max", pod),
                ("sys/fs/cgroup/kubepods.slice/pod1.slice/broker.scope/memory.max", container),
            ])
        };
        assert_eq!(limits("3145728\n", "5242880\n"), 3 * MIB);
        assert_eq!(limits("max\n", "5242880\n"), 5 * MIB);
    }

    #[test]
    fn version_1_has_a_hierarchy_for_memory_and_no_limit_is_a_huge_one() {
        let own = ("proc/self/cgroup", "11:cpuset:/a\n4:cpu,memory:/docker/abc\n1:name=systemd:/a\n0::/\n");
        let place = "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes";
        assert_eq!(limit(&[MACHINE, own, (place, "2097152\n")]), 2 * MIB);
        assert_eq!(limit(&[MACHINE, own, (place, "9223372036854771712\n")]), 16 * MIB);
        // The host's path is not mounted in the container: its own group is at the top.
        assert_eq!(limit(&[MACHINE, own, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n")]), 2 * MIB);
    }

    #[test]
    fn nothing_outside_the_mount_is_read() {
        let own = ("proc/self/cgroup", "0::/../../other\n");
        assert_eq!(limit(&[MACHINE, own, ("sys/memory.max", "1\n"), ("sys/fs/other/memory.max", "1\n")]), 16 * MIB);
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        assert_eq!(limit(&[]), UNKNOWN_MEMORY_BYTES);
        assert_eq!(limit(&[("proc/self/cgroup", "0\nmemory\n::\n"), MACHINE]), 16 * MIB);
        let garbled = [("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "-5\n"), MACHINE];
        assert_eq!(limit(&garbled), 16 * MIB);
        assert_eq!(limit(&[("proc/meminfo", "MemTotal: many kB\n")]), UNKNOWN_MEMORY_BYTES);
    }

    #[test]
    fn this_process_has_memory_and_a_limit() {
        let resident = resident_bytes().unwrap();
        assert!(resident > 0 && resident <= memory_limit(), "{resident}");
    }
}
