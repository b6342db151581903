// Package apparmor is the seam to the kernel's AppArmor: whether it is there, which profiles are
// loaded, and loading one.
//
// Owns: the files of securityfs, the parser program. Must not: choose profiles or write their text.
package apparmor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// ErrDisabled says that this host's kernel enforces no profiles.
var ErrDisabled = errors.New("AppArmor is not enabled on the host")

// Host is where a machine has AppArmor.
type Host struct {
	Security string // its folder in securityfs
	Enable   string // file that says Y where the kernel has it switched on
	Parser   string // program that compiles and loads profiles; may be missing
	Current  string // file with the profile of this process
	Abstract string // folder of the pieces that profiles are made of
}

// This is the machine that the process runs on.
func This() Host {
	parser, err := exec.LookPath("apparmor_parser")
	if err != nil {
		parser = "/sbin/apparmor_parser" // services are often started without /sbin in their PATH
	}
	return Host{
		Security: "/sys/kernel/security/apparmor", Enable: "/sys/module/apparmor/parameters/enabled",
		Parser: parser, Current: "/proc/self/attr/current", Abstract: "/etc/apparmor.d",
	}
}

// Check returns ErrDisabled where profiles cannot be enforced, by what libcontainer and upstream's
// kubelet look at.
func (h Host) Check() error {
	if _, err := os.Stat(h.Security); err != nil {
		return ErrDisabled
	}
	if b, err := os.ReadFile(h.Enable); err != nil || !bytes.HasPrefix(b, []byte("Y")) {
		return ErrDisabled
	}
	return nil
}

// CanLoad says whether the parser is installed.
func (h Host) CanLoad() bool {
	_, err := os.Stat(h.Parser)
	return err == nil
}

// Loaded says whether the kernel has a profile of that name. A profile that is loaded only to
// complain is there as well.
func (h Host) Loaded(name string) (bool, error) {
	f, err := os.Open(h.Security + "/profiles")
	if err != nil {
		return false, fmt.Errorf("list AppArmor profiles: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// NAME (MODE); a name may have spaces.
		if i := strings.LastIndex(lines.Text(), " ("); i >= 0 && lines.Text()[:i] == name {
			return true, nil
		}
	}
	if err := lines.Err(); err != nil {
		return false, fmt.Errorf("list AppArmor profiles: %w", err)
	}
	return false, nil
}

// Load compiles a profile and gives it to the kernel, in place of one of its name. Nothing is
// cached on disk.
func (h Host) Load(ctx context.Context, text string) error {
	cmd := exec.CommandContext(ctx, h.Parser, "--skip-cache", "--replace")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load AppArmor profile: %s: %w: %s", h.Parser, err, strings.Join(strings.Fields(string(out)), " "))
	}
	return nil
}

// Own is the profile that confines this process; "" for none.
func (h Host) Own() string {
	b, err := os.ReadFile(h.Current)
	if err != nil {
		return "" // no such file without AppArmor
	}
	name, _, _ := strings.Cut(strings.Trim(string(b), "\x00\n"), " (")
	if name == "unconfined" {
		return ""
	}
	return name
}

// Has says whether a piece that profiles may include is installed.
func (h Host) Has(piece string) bool {
	_, err := os.Stat(h.Abstract + "/" + piece)
	return err == nil
}
