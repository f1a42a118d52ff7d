# Control groups, version 1 and 2, for `hermetic`: everything that a cluster runs lives under one group,
# so that a node can be stopped as a whole, and so that nothing is ever looked for by its name.
#
#   $CLUSTER/cp/system        the control plane
#   $CLUSTER/nN/system        node N's containerd, kubelet and kube-proxy, and the containers' shims
#   $CLUSTER/nN/kubepods/...  the containers, made by the kubelet, one group a pod and one a container
#
# Knows nothing of Kubernetes. Version 1 keeps the daemons only in the `pids` and `freezer` hierarchies.
# shellcheck shell=bash

CGROUPS=/sys/fs/cgroup
if [ -f $CGROUPS/cgroup.controllers ]; then CGROUP_VERSION=2; else CGROUP_VERSION=1; fi

# Where each of our groups can be listed with all its processes.
if [ $CGROUP_VERSION = 2 ]; then GROUP_ROOT=$CGROUPS/$CLUSTER; else GROUP_ROOT=$CGROUPS/pids/$CLUSTER; fi

cgroup_hierarchies() {
  if [ $CGROUP_VERSION = 2 ]; then echo $CGROUPS; else awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts; fi
}

# Makes GROUP (cp, n1, ...) and its `system` leaf in every hierarchy.
group_make() {
  local hierarchy path
  for hierarchy in $(cgroup_hierarchies); do
    mkdir -p "$hierarchy/$CLUSTER/$1/system"
    if [ -f "$hierarchy/cpuset.cpus" ] && [ $CGROUP_VERSION = 1 ]; then
      # A new cpuset is empty, and takes no process until it is filled in, from the top.
      for path in "$CLUSTER" "$CLUSTER/$1"; do
        cat "$hierarchy/cpuset.cpus" >"$hierarchy/$path/cpuset.cpus"
        cat "$hierarchy/cpuset.mems" >"$hierarchy/$path/cpuset.mems"
      done
    fi
  done
  if [ $CGROUP_VERSION = 2 ]; then
    for path in "$CGROUPS" "$CGROUPS/$CLUSTER" "$CGROUPS/$CLUSTER/$1"; do group_delegate "$path"; done
  fi
}

# Version 2: hands every controller of a group on to its children. Inside a container the root group has
# processes of its own, which version 2 forbids beside children with controllers: they move to a leaf.
group_delegate() {
  local wanted pid
  wanted=$(sed 's/[^ ]*/+&/g' "$1/cgroup.controllers")
  if ! echo "$wanted" >"$1/cgroup.subtree_control" 2>/dev/null; then
    mkdir -p "$1/rest"
    while read -r pid; do echo "$pid" >"$1/rest/cgroup.procs" 2>/dev/null || true; done <"$1/cgroup.procs"
    echo "$wanted" >"$1/cgroup.subtree_control" || die "cgroup v2: cannot hand on controllers in $1: is this container allowed to write its cgroup tree?"
  fi
}

# The calling shell and what it starts belong to GROUP from now on.
group_join() {
  if [ $CGROUP_VERSION = 2 ]; then
    echo "$BASHPID" >"$CGROUPS/$CLUSTER/$1/system/cgroup.procs"
  else
    echo "$BASHPID" >"$CGROUPS/pids/$CLUSTER/$1/system/cgroup.procs"
    echo "$BASHPID" >"$CGROUPS/freezer/$CLUSTER/$1/system/cgroup.procs"
  fi
}

# The processes of a group and of all groups below; of the whole cluster without an argument.
group_processes() {
  [ -d "$GROUP_ROOT${1:+/$1}" ] || return 0
  find "$GROUP_ROOT${1:+/$1}" -name cgroup.procs -exec cat {} + 2>/dev/null || true
}

group_has() { grep -qx "$2" "$GROUP_ROOT/$1/system/cgroup.procs" 2>/dev/null; }

# Stops a group with all below it, at once and unseen by the processes; and lets it go on.
group_freeze() {
  if [ $CGROUP_VERSION = 2 ]; then
    echo 1 >"$CGROUPS/$CLUSTER/$1/cgroup.freeze"
    await 40 grep -q 'frozen 1' "$CGROUPS/$CLUSTER/$1/cgroup.events"
  else
    echo FROZEN >"$CGROUPS/freezer/$CLUSTER/$1/freezer.state"
    await 40 grep -q FROZEN "$CGROUPS/freezer/$CLUSTER/$1/freezer.state"
  fi
}
group_thaw() {
  if [ $CGROUP_VERSION = 2 ]; then
    echo 0 >"$CGROUPS/$CLUSTER/$1/cgroup.freeze"
  else
    echo THAWED >"$CGROUPS/freezer/$CLUSTER/$1/freezer.state"
  fi
}
group_is_frozen() {
  grep -qs 'FROZEN\|FREEZING' "$CGROUPS/freezer/$CLUSTER/$1/freezer.state" || grep -qs 'frozen 1' "$CGROUPS/$CLUSTER/$1/cgroup.events"
}

# Ends every process of a group and of all groups below; of the whole cluster without an argument. Repeats,
# since a process that is being killed may have started another.
group_end() {
  group_killed() {
    # shellcheck disable=SC2046 # a list of numbers
    kill -9 $(group_processes "${1:-}") 2>/dev/null || true
    [ -z "$(group_processes "${1:-}")" ]
  }
  # Version 1 delivers no signal, not even this one, to what is frozen.
  if [ -n "${1:-}" ]; then group_thaw "$1"; fi
  await 80 group_killed "${1:-}"
}

# Ends the cluster's processes and takes all its groups away.
groups_end() {
  local path hierarchy
  for path in "$GROUP_ROOT"/*/; do
    [ -d "$path" ] && group_thaw "$(basename "$path")"
  done
  group_end || die "processes $(group_processes | xargs) do not end, though killed: see /proc/PID/stack"
  groups_removed() {
    local left=0
    for hierarchy in $(cgroup_hierarchies); do
      [ -d "$hierarchy/$CLUSTER" ] || continue
      find "$hierarchy/$CLUSTER" -depth -type d -exec rmdir {} \; 2>/dev/null || true
      [ -d "$hierarchy/$CLUSTER" ] && left=1
    done
    [ $left = 0 ]
  }
  await 40 groups_removed || die "control groups named $CLUSTER under $CGROUPS cannot be removed"
}
