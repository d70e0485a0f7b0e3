//! How much memory the control groups of the process leave to it (cgroups(7)).
//!
//! A limit holds for a group and for all groups below it. So the least limit on the path from the
//! process's own group to the root counts, in version 1 as in version 2. The library that says how much
//! memory the machine has (`sysinfo`) looks only at the root.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use procfs_core::{
    FromRead, ProcResult, ProcessCGroup, ProcessCGroups,
    process::{MountInfo, MountInfos},
};

/// The files with limits of a group of version 2, in bytes or `max`. A process that exceeds `memory.high`
/// is not ended, but becomes too slow to be of use.
const LIMITS: [&str; 2] = ["memory.max", "memory.high"];

/// The file with the limit of a group of version 1, in bytes.
const LIMIT_V1: &str = "memory.limit_in_bytes";

/// What version 1 says of the least limit on the path. It counts groups that are not visible in a container.
const PATH_LIMIT_V1: &str = "hierarchical_memory_limit ";

/// The least memory limit of the process's control groups in bytes. `None`: there is none, or the system
/// cannot say. Files are looked for below `root`, which is `/` but in tests.
pub(super) fn memory_limit(root: &Path) -> Option<u64> {
    match read_limit(root) {
        Ok(limit) => limit,
        Err(error) => {
            tracing::debug!(%error, "the memory limit of the control groups is not known");
            None
        }
    }
}

fn read_limit(root: &Path) -> ProcResult<Option<u64>> {
    let groups = ProcessCGroups::from_file(root.join("proc/self/cgroup"))?;
    let mounts = MountInfos::from_file(root.join("proc/self/mountinfo"))?;
    let hierarchies = groups.0.iter().filter_map(Hierarchy::of_memory);
    let limits = hierarchies.flat_map(|(hierarchy, group)| {
        let mounts = mounts.0.iter().filter(move |mount| hierarchy.is_at(mount));
        mounts.filter_map(move |mount| hierarchy.limit(root, mount, group))
    });
    Ok(limits.min())
}

/// A hierarchy of groups that may limit memory.
#[derive(Clone, Copy, Debug)]
enum Hierarchy {
    V1,
    V2,
}

impl Hierarchy {
    /// The hierarchy of a line of `/proc/self/cgroup` if it may limit memory, and the path of the group in it.
    fn of_memory(group: &ProcessCGroup) -> Option<(Self, &Path)> {
        let is_v1 = group.controllers.iter().any(|controller| controller == "memory");
        let version = match group.hierarchy {
            0 => Self::V2,
            _ if is_v1 => Self::V1,
            _ => return None,
        };
        Some((version, Path::new(&group.pathname)))
    }

    fn is_at(self, mount: &MountInfo) -> bool {
        match self {
            Self::V1 => mount.fs_type == "cgroup" && mount.super_options.contains_key("memory"),
            Self::V2 => mount.fs_type == "cgroup2",
        }
    }

    /// The least limit of the groups from the process's own up to the one that is mounted.
    fn limit(self, root: &Path, mount: &MountInfo, group: &Path) -> Option<u64> {
        let mounted_at = unescaped(&mount.mount_point.to_string_lossy());
        let mounted_at = root.join(mounted_at.strip_prefix("/").unwrap_or(&mounted_at));
        let mounted_group = unescaped(&mount.root);
        // A group that is not below the mounted one is not visible. What is mounted then is most often the
        // process's own group, under a name of another namespace.
        let below = group.strip_prefix(&mounted_group).unwrap_or(Path::new(""));
        let is_visible = !below.components().any(|part| part == Component::ParentDir);
        let own = mounted_at.join(if is_visible { below } else { Path::new("") });
        let path = own.ancestors().take_while(|folder| folder.starts_with(&mounted_at));
        path.filter_map(|folder| self.limit_of(folder)).min()
    }

    /// The limit of one group. A file that cannot be read states no limit.
    fn limit_of(self, group: &Path) -> Option<u64> {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        let bytes = |name: &str| read(name)?.trim().parse::<u64>().ok();
        match self {
            Self::V1 => {
                let stat = read("memory.stat").unwrap_or_default();
                let of_path = stat.lines().find_map(|line| line.strip_prefix(PATH_LIMIT_V1));
                let of_path = of_path.and_then(|limit| limit.trim().parse().ok());
                bytes(LIMIT_V1).into_iter().chain(of_path).min()
            }
            Self::V2 => LIMITS.into_iter().filter_map(bytes).min(),
        }
    }
}

/// A path of `/proc/self/mountinfo`, in which the kernel writes a space, a tab, a line feed and a backslash
/// as three octal digits (`proc_pid_mountinfo(5)`).
fn unescaped(path: &str) -> PathBuf {
    let replaced = path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    PathBuf::from(replaced.replace("\\134", "\\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
    const V2: &str =
        "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
    const HYBRID: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
    /// What version 1 calls no limit.
    const UNLIMITED: &str = "9223372036854771712";

    /// The limit with these lines of `/proc/self/cgroup` and `/proc/self/mountinfo`, and these files below
    /// `/sys/fs/cgroup`.
    fn limit(cgroup: &str, mounts: &[&str], files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        write("proc/self/cgroup", cgroup);
        write("proc/self/mountinfo", &(mounts.join("\n") + "\n"));
        for (path, content) in files {
            write(&format!("sys/fs/cgroup/{path}"), content);
        }
        memory_limit(root.path())
    }

    #[test]
    fn the_least_limit_on_the_path_counts_in_version_2() {
        let unit = "0::/system.slice/tandem.service\n";
        for (files, expected) in [
            (&[][..], None),
            (&[("system.slice/tandem.service/memory.max", "max\n")], None),
            (&[("system.slice/tandem.service/memory.max", "300000000\n")], Some(300_000_000)),
            (&[("system.slice/tandem.service/memory.high", "200000000\n")], Some(200_000_000)),
            (&[("system.slice/memory.max", "400000000\n")], Some(400_000_000)),
            (&[("memory.max", "500000000\n")], Some(500_000_000)),
            // Another group has no say.
            (&[("system.slice/other.service/memory.max", "1\n")], None),
            (&[("system.slice/tandem.service/below/memory.max", "1\n")], None),
            (&[("system.slice/tandem.service/memory.max", "many\n")], None),
        ] {
            assert_eq!(limit(unit, &[V2], files), expected, "{files:?}");
        }
        let all = [
            ("system.slice/tandem.service/memory.max", "700\n"),
            ("system.slice/memory.max", "600\n"),
            ("system.slice/memory.high", "max\n"),
            ("memory.max", "900\n"),
        ];
        assert_eq!(limit(unit, &[V2], &all), Some(600));
    }

    #[test]
    fn the_least_limit_on_the_path_counts_in_version_1() {
        let unit = "9:name=systemd:/\n4:cpu,memory:/a/b\n1:cpuset:/c\n0::/\n";
        for (files, expected) in [
            (&[("memory/a/b/memory.limit_in_bytes", "300\n")][..], Some(300)),
            (&[("memory/a/memory.limit_in_bytes", "400\n")], Some(400)),
            (&[("memory/c/memory.limit_in_bytes", "1\n")], None),
            (
                &[
                    ("memory/a/b/memory.limit_in_bytes", UNLIMITED),
                    ("memory/a/b/memory.stat", "cache 1\nhierarchical_memory_limit 250\nrss 7\n"),
                ],
                Some(250),
            ),
            // Version 2 is mounted as well, without the memory controller.
            (
                &[("unified/memory.pressure", "some"), ("memory/a/memory.limit_in_bytes", "4")],
                Some(4),
            ),
        ] {
            assert_eq!(limit(unit, &[V1, HYBRID], files), expected, "{files:?}");
        }
    }

    #[test]
    fn groups_of_containers_are_found() {
        let docker = "35 31 0:32 /docker/1a /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        let outside = "31 23 0:27 /../x /sys/fs/cgroup ro - cgroup2 cgroup2 rw";
        let v1_file = &[("memory/memory.limit_in_bytes", "300\n")];
        let v2_file = &[("memory.max", "300\n")];
        let nested = &[("app/memory.max", "300\n"), ("memory.max", "max\n")];
        for (cgroup, mount, files, expected) in [
            // With a namespace of its own, the process sees its group as the root.
            ("0::/\n", V2, &v2_file[..], Some(300)),
            // Without one, it sees its group's path on the host, and only its own group is mounted.
            ("4:memory:/docker/1a\n", docker, v1_file, Some(300)),
            // A group that the container made for itself.
            ("0::/app\n", V2, nested, Some(300)),
            (
                "4:memory:/docker/1a/b\n",
                docker,
                &[("memory/b/memory.limit_in_bytes", "5")],
                Some(5),
            ),
            // The names are those of different namespaces.
            ("4:memory:/\n", docker, v1_file, Some(300)),
            ("0::/../x/app\n", outside, nested, Some(300)),
            ("0::/../../y\n", V2, v2_file, Some(300)),
        ] {
            assert_eq!(limit(cgroup, &[mount], files), expected, "{cgroup}{mount}");
        }
    }

    #[test]
    fn odd_names_of_groups_and_folders_are_read() {
        let mount = r"31 23 0:27 /a\134x2db /sys/fs/cgroup/with\040space rw - cgroup2 cgroup2 rw";
        let files = [("with space/c/memory.max", "300")];
        assert_eq!(limit("0::/a\\x2db/c\n", &[mount], &files), Some(300));
    }

    #[test]
    fn a_system_that_cannot_say_has_no_limit() {
        assert_eq!(limit("", &[V2], &[("memory.max", "1")]), None);
        assert_eq!(limit("no line of this file\n", &[V2], &[("memory.max", "1")]), None);
        assert_eq!(limit("0::/\n", &["no mount"], &[("memory.max", "1")]), None);
        assert_eq!(memory_limit(Path::new("/does/not/exist")), None);
    }
}
