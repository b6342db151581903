package containers

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Each series must have as many label values as its descriptor has keys: a client puts them
// side by side.
func TestMetricsFitTheirDescriptors(t *testing.T) {
	h := newHarness(t)
	ctx := context.Background()
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command = []string{"sh", "-c", "dd if=/dev/zero of=/file bs=1M count=3 2>/dev/null; nc -l -p 80 & exec sleep 1000"}
		c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.CpuShares, c.Linux.Resources.CpuQuota, c.Linux.Resources.CpuPeriod = 64<<20, 100, 20000, 100000
	})
	h.start(id)
	described, err := h.Runtime.ListMetricDescriptors(ctx, &runtimeapi.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string][]string{}
	for _, d := range described.GetDescriptors() {
		if keys[d.GetName()] != nil || d.GetHelp() == "" {
			t.Errorf("descriptor %s is there twice or without help", d.GetName())
		}
		keys[d.GetName()] = d.GetLabelKeys()
	}
	var got map[string]map[string]uint64
	h.eventually("two processes in the container", func() error {
		listed, err := h.Runtime.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
		if err != nil {
			return err
		}
		got = map[string]map[string]uint64{}
		for _, pod := range listed.GetPodMetrics() {
			all := pod.GetMetrics()
			for _, c := range pod.GetContainerMetrics() {
				all = append(all, c.GetMetrics()...)
			}
			for _, m := range all {
				if len(m.GetLabelValues()) != len(keys[m.GetName()]) {
					t.Fatalf("%s has labels %q, its descriptor %q", m.GetName(), m.GetLabelValues(), keys[m.GetName()])
				}
				if got[m.GetName()] == nil {
					got[m.GetName()] = map[string]uint64{}
				}
				got[m.GetName()][strings.Join(m.GetLabelValues()[len(commonLabels):], ",")] = m.GetValue().GetValue()
			}
		}
		if got["container_processes"][""] != 2 || got["container_sockets"][""] == 0 || got["container_fs_usage_bytes"] == nil {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	for name, want := range map[string]uint64{
		"container_spec_memory_limit_bytes": 64 << 20, "container_spec_cpu_shares": 100, "container_spec_cpu_quota": 20000,
		"container_spec_cpu_period": 100000, "container_threads": 2, "container_oom_events_total": 0,
	} {
		if v, ok := got[name][""]; !ok || v != want {
			t.Errorf("%s is %d (%t), want %d", name, v, ok, want)
		}
	}
	if got["container_ulimits_soft"]["max_open_files"] == 0 || got["container_memory_usage_bytes"][""] == 0 || got["container_last_seen"][""] < got["container_start_time_seconds"][""] {
		t.Errorf("limits of files, memory or times are off: %v", got)
	}
}

func TestParseNetDev(t *testing.T) {
	text := `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0
  eth0:1234 5 6 7 0 0 0 0 4321 8 9 10 0 0 0 0
`
	want := []netInterface{{"eth0", traffic{1234, 5, 6, 7}, traffic{4321, 8, 9, 10}}}
	if got := parseNetDev(text); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := parseNetDev(""); got == nil || len(got) != 0 {
		t.Errorf("a namespace without interfaces gives %v", got)
	}
}

func TestUserNamespacesThatCannotBe(t *testing.T) {
	r := &Runtime{}
	ids := func(m ...uint32) []*runtimeapi.IDMapping {
		var out []*runtimeapi.IDMapping
		for part := range slices.Chunk(m, 3) {
			out = append(out, &runtimeapi.IDMapping{ContainerId: part[0], HostId: part[1], Length: part[2]})
		}
		return out
	}
	root := ids(0, 1000, 65536)
	for name, tt := range map[string]struct {
		mode       runtimeapi.NamespaceMode
		uids, gids []*runtimeapi.IDMapping
		want       string
	}{
		"the node's":             {runtimeapi.NamespaceMode_NODE, nil, nil, ""},
		"the pod's":              {runtimeapi.NamespaceMode_POD, root, root, ""},
		"in two parts":           {runtimeapi.NamespaceMode_POD, ids(0, 1000, 10, 10, 5000, 10), root, ""},
		"of a container":         {runtimeapi.NamespaceMode_CONTAINER, nil, nil, "mode"},
		"of a target":            {runtimeapi.NamespaceMode_TARGET, nil, nil, "mode"},
		"without mappings":       {runtimeapi.NamespaceMode_POD, nil, root, "uids: ID 0"},
		"without root":           {runtimeapi.NamespaceMode_POD, ids(1, 1000, 65536), root, "uids: ID 0"},
		"without group root":     {runtimeapi.NamespaceMode_POD, root, ids(1, 1000, 65536), "gids: ID 0"},
		"with none of root":      {runtimeapi.NamespaceMode_POD, ids(0, 1000, 0), root, "uids: ID 0"},
		"an ID mapped twice":     {runtimeapi.NamespaceMode_POD, ids(0, 1000, 100, 50, 2000, 100), root, "uids: two"},
		"to one ID of the host":  {runtimeapi.NamespaceMode_POD, root, ids(0, 1000, 100, 100, 1099, 100), "gids: two"},
		"up to the last of them": {runtimeapi.NamespaceMode_POD, ids(0, 1000, 100, 100, 1<<32-100, 100), root, ""},
	} {
		err := r.checkUserNamespace(&runtimeapi.UserNamespace{Mode: tt.mode, Uids: tt.uids, Gids: tt.gids})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("a namespace %s: %v, want %q", name, err, tt.want)
		}
	}
	if err := r.checkUserNamespace(nil); err != nil {
		t.Error(err)
	}
}
