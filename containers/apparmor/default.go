package apparmor

import "strings"

// DefaultName is the profile of containers that ask for RuntimeDefault or for nothing.
const DefaultName = "skiff-default"

// rules keep a container from the host's knobs and from other containers' processes, and leave it
// the rest: what it may do within its namespaces is up to capabilities and seccomp.
const rules = `
  network,
  capability,
  file,
  umount,
  deny mount,

  # Signals come from the host's processes, and go to and fro within the profile.
  signal (receive) peer=unconfined,
  signal (send, receive) peer=@{profile_name},
  ptrace (trace, tracedby, read, readby) peer=@{profile_name},

  # /proc: processes' own folders may be written, of the kernel's settings those of shared memory.
  deny @{PROC}/* w,
  deny @{PROC}/kcore rwklx,
  deny @{PROC}/sysrq-trigger rwklx,
  deny @{PROC}/[^1-9st]*/** w,
  deny @{PROC}/{scsi,spl,sysvipc,tty}/** w,
  deny @{PROC}/sys/[^k]** w,
  deny @{PROC}/sys/{k[^e],ke[^r],key}** w,
  deny @{PROC}/sys/kernel/{[^s],s[^h],sh[^m]}** w,

  # /sys: control groups alone, which the mount's own options guard.
  deny /sys/[^f]** wklx,
  deny /sys/f[^s]** wklx,
  deny /sys/fs/[^c]** wklx,
  deny /sys/fs/c[^g]** wklx,
  deny /sys/fs/cg[^r]** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/kernel/security/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
`

// text is the default profile, for a host that has some of the pieces that distributions ship,
// and for a runtime that may be confined itself.
func text(has func(piece string) bool, own string) string {
	var b strings.Builder
	// Without it the rules would mean what the installed parser's own version means by them.
	if has("abi/3.0") {
		b.WriteString("abi <abi/3.0>,\n")
	}
	if has("tunables/global") {
		b.WriteString("include <tunables/global>\n")
	} else {
		b.WriteString("@{PROC}=/proc/\n")
	}
	b.WriteString("profile " + DefaultName + " flags=(attach_disconnected, mediate_deleted) {\n")
	if has("abstractions/base") {
		b.WriteString("  include <abstractions/base>\n")
	}
	b.WriteString(strings.ReplaceAll(rules, "@{profile_name}", DefaultName))
	if own != "" {
		b.WriteString("\n  # The runtime itself.\n  signal (receive) peer=" + quote(own) + ",\n")
	}
	b.WriteString("}\n")
	return b.String()
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `\"`) + `"` }
