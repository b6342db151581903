package main

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/scheduler"
)

// schedulerFlags are the flags of skiff kube-scheduler.
type schedulerFlags struct {
	client   client
	election election
	port     delegated
	file     string
}

func kubeSchedulerCommand() *cobra.Command {
	return component{
		name: "kube-scheduler", short: "Run a scheduler alone, with upstream's flags",
		accepted: slices.Concat(delegatedAccepted, versionedAccepted, []others{
			{"pods that cannot be placed are tried again on events and every five minutes", "pod-max-in-unschedulable-pods-duration"},
		}),
		refused: slices.Concat(servingRefused, []others{{"the configuration is not written", "write-config-to"}}),
		bind: func(flags *pflag.FlagSet) func(*cobra.Command, *slog.Logger) error {
			var f schedulerFlags
			f.client.bind(flags, 50, 100)
			f.client.bindMaster(flags)
			f.election.bind(flags, "kube-scheduler")
			f.port.bind(flags, 10259)
			flags.StringVar(&f.file, "config", "", "KubeSchedulerConfiguration file; its settings count for more than flags")
			return func(cmd *cobra.Command, log *slog.Logger) error {
				c, err := f.config(log)
				if err != nil {
					return err
				}
				return cluster.RunScheduler(cmd.Context(), c)
			}
		},
	}.command()
}

// versionedAccepted are flags of all of upstream's components.
var versionedAccepted = []others{
	{"features are at the defaults of the version that is served", "feature-gates emulated-version min-compatibility-version"},
	{"metrics are served as they are", "allow-metric-labels allow-metric-labels-manifest disabled-metrics show-hidden-metrics-for-version"},
	{"the component has no such endpoint", "contention-profiling?"},
}

func (f *schedulerFlags) config(log *slog.Logger) (cluster.SchedulerConfig, error) {
	none := func(err error) (cluster.SchedulerConfig, error) { return cluster.SchedulerConfig{}, err }
	c := cluster.SchedulerConfig{Logger: log}
	if f.file != "" {
		if err := f.read(&c); err != nil {
			return none(err)
		}
	}
	cfg, err := f.client.config()
	if err != nil {
		return none(err)
	}
	if c.Client, err = kubernetes.NewForConfig(cfg); err != nil {
		return none(fmt.Errorf("--kubeconfig: %w", err))
	}
	c.Informers = func() informers.SharedInformerFactory { return informers.NewSharedInformerFactory(c.Client, 0) }
	if c.Election, err = f.election.config(); err != nil {
		return none(err)
	}
	c.Serve, err = f.port.config("kube-scheduler")
	return c, err
}

// read takes over what a configuration file says.
func (f *schedulerFlags) read(c *cluster.SchedulerConfig) error {
	var file schedulerv1.KubeSchedulerConfiguration
	if err := readConfig(f.file, "kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration", &file); err != nil {
		return err
	}
	if len(file.Extenders) > 0 {
		return fmt.Errorf("--config: %s: extenders: there are none; use a scheduler of your own for these pods", f.file)
	}
	if conn := file.ClientConnection; conn.Kubeconfig != "" || conn.QPS != 0 || conn.Burst != 0 {
		f.client.kubeconfig = orElse(conn.Kubeconfig, f.client.kubeconfig)
		f.client.qps, f.client.burst = orElse(conn.QPS, f.client.qps), orElse(int(conn.Burst), f.client.burst)
		f.client.contentType = orElse(conn.ContentType, f.client.contentType)
	}
	f.election.read(file.LeaderElection)
	if p := file.EnableProfiling; p != nil {
		f.port.profiling = *p
	}
	if p := file.PercentageOfNodesToScore; p != nil {
		c.PercentageOfNodesToScore = *p
	}
	for i := range file.Profiles {
		p, err := schedulerProfile(&file.Profiles[i])
		if err != nil {
			return fmt.Errorf("--config: %s: profiles[%d].%w", f.file, i, err)
		}
		c.Profiles = append(c.Profiles, p)
	}
	return nil
}

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// schedulerProfile translates a profile.
func schedulerProfile(in *schedulerv1.KubeSchedulerProfile) (scheduler.Profile, error) {
	out := scheduler.Profile{Weights: map[string]int64{}}
	if in.SchedulerName != nil {
		out.Name = *in.SchedulerName
	}
	if in.PercentageOfNodesToScore != nil {
		out.PercentageOfNodesToScore = *in.PercentageOfNodesToScore
	}
	if in.Plugins != nil {
		plugins(in.Plugins, &out)
		if err := out.Check(); err != nil {
			return out, err
		}
	}
	for i := range in.PluginConfig {
		if err := pluginConfig(&in.PluginConfig[i], &out); err != nil {
			return out, fmt.Errorf("pluginConfig[%d]: %w", i, err)
		}
	}
	return out, nil
}

func plugins(in *schedulerv1.Plugins, out *scheduler.Profile) {
	out.Plugins, out.Points = pluginSet(in.MultiPoint), map[string]scheduler.PluginSet{}
	// What score says of a plugin's weight counts for more.
	for _, p := range append(slices.Clone(in.MultiPoint.Enabled), in.Score.Enabled...) {
		delete(out.Weights, p.Name)
		if p.Weight != nil && *p.Weight != 0 {
			out.Weights[p.Name] = int64(*p.Weight)
		}
	}
	for _, p := range []struct {
		name string
		set  schedulerv1.PluginSet
	}{
		{"preEnqueue", in.PreEnqueue}, {"queueSort", in.QueueSort}, {"preFilter", in.PreFilter}, {"filter", in.Filter},
		{"postFilter", in.PostFilter}, {"preScore", in.PreScore}, {"score", in.Score}, {"reserve", in.Reserve}, {"permit", in.Permit},
		{"preBind", in.PreBind}, {"bind", in.Bind}, {"postBind", in.PostBind},
		{"placementGenerate", in.PlacementGenerate}, {"placementScore", in.PlacementScore}, {"podGroupPostFilter", in.PodGroupPostFilter},
	} {
		if len(p.set.Enabled)+len(p.set.Disabled) > 0 {
			out.Points[p.name] = pluginSet(p.set)
		}
	}
}

func pluginSet(in schedulerv1.PluginSet) scheduler.PluginSet {
	var out scheduler.PluginSet
	for _, p := range in.Enabled {
		out.Enabled = append(out.Enabled, p.Name)
	}
	for _, p := range in.Disabled {
		out.Disabled = append(out.Disabled, p.Name)
	}
	return out
}
