package node

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// evictionMemory and evictionDisk are kept free of pods: below them the kubelet
// evicts (upstream's default hard thresholds).
const (
	evictionMemory      = 100 << 20
	evictionDiskPercent = 10
)

// capacity is what the machine has, but for what the configuration says otherwise.
func capacity(cfg Config) (corev1.ResourceList, error) {
	memory, err := meminfo("MemTotal")
	if err != nil {
		return nil, err
	}
	c := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(cfg.MaxPods, resource.DecimalSI),
	}
	var fs unix.Statfs_t
	dir := cfg.RootDir
	for unix.Statfs(dir, &fs) != nil && dir != "/" && dir != "." {
		dir = filepath.Dir(dir)
	}
	c[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(fs.Blocks)*fs.Bsize, resource.BinarySI)
	sizes, _ := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	for _, s := range sizes {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(s), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		n := int64(0)
		if raw, err := os.ReadFile(filepath.Join(s, "nr_hugepages")); err == nil {
			n, _ = strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		}
		name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(kb<<10, resource.BinarySI).String())
		c[name] = *resource.NewQuantity(n*kb<<10, resource.BinarySI)
	}
	for k, v := range cfg.Capacity {
		c[k] = v
	}
	return c, nil
}

// divide is the share of one of n nodes that a machine is divided among. How many pods there may be is
// each node's own.
func divide(machine corev1.ResourceList, n int64) corev1.ResourceList {
	out := machine.DeepCopy()
	if n <= 1 {
		return out
	}
	for name, q := range out {
		switch {
		case name == corev1.ResourcePods:
		case name == corev1.ResourceCPU:
			out[name] = *resource.NewMilliQuantity(q.MilliValue()/n, q.Format)
		case strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			// Whole pages only.
			size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
			if err != nil || size.Value() == 0 {
				continue
			}
			out[name] = *resource.NewQuantity(q.Value()/size.Value()/n*size.Value(), q.Format)
		default:
			out[name] = *resource.NewQuantity(q.Value()/n, q.Format)
		}
	}
	return out
}

// allocatable is the capacity without what is reserved and what must stay free.
func allocatable(capacity, reserved corev1.ResourceList) corev1.ResourceList {
	out := capacity.DeepCopy()
	take := func(name corev1.ResourceName, q resource.Quantity) {
		v, ok := out[name]
		if !ok {
			return
		}
		if v.Sub(q); v.Sign() < 0 {
			v = *resource.NewQuantity(0, v.Format)
		}
		out[name] = v
	}
	for name, q := range reserved {
		take(name, q)
	}
	take(corev1.ResourceMemory, *resource.NewQuantity(evictionMemory, resource.BinarySI))
	// Huge pages are not there for anything else.
	for name, q := range capacity {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			take(corev1.ResourceMemory, q)
		}
	}
	disk := capacity[corev1.ResourceEphemeralStorage]
	take(corev1.ResourceEphemeralStorage, *resource.NewQuantity(disk.Value()*evictionDiskPercent/100, resource.BinarySI))
	return out
}

func meminfo(key string) (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the machine's memory: %w", err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		name, rest, ok := strings.Cut(sc.Text(), ":")
		if !ok || name != key {
			continue
		}
		kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the machine's memory: %w", err)
		}
		return kb << 10, nil
	}
	return 0, fmt.Errorf("read the machine's memory: no %s in /proc/meminfo", key)
}

func systemInfo(version string) corev1.NodeSystemInfo {
	line := func(path string) string {
		raw, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(raw))
	}
	info := corev1.NodeSystemInfo{
		MachineID: line("/etc/machine-id"), SystemUUID: line("/sys/class/dmi/id/product_uuid"), BootID: line("/proc/sys/kernel/random/boot_id"),
		KernelVersion: line("/proc/sys/kernel/osrelease"), OSImage: "Unknown", KubeletVersion: version, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
	}
	if info.SystemUUID == "" {
		info.SystemUUID = info.MachineID
	}
	for _, l := range strings.Split(line("/etc/os-release"), "\n") {
		if v, ok := strings.CutPrefix(l, "PRETTY_NAME="); ok {
			info.OSImage = strings.Trim(v, `"'`)
		}
	}
	if swap, err := meminfo("SwapTotal"); err == nil && swap > 0 {
		info.Swap = &corev1.NodeSwapStatus{Capacity: &swap}
	}
	return info
}
