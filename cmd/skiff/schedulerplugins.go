package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/skiff-k8s/skiff/scheduler"
	"github.com/skiff-k8s/skiff/scheduler/plugins/noderesources"
)

// pluginConfig takes over the arguments of one plugin. Arguments that say what holds anyway
// are taken too; others are refused by name.
func pluginConfig(in *schedulerv1.PluginConfig, out *scheduler.Profile) error {
	decode := func(into any) error {
		if len(in.Args.Raw) == 0 {
			return nil
		}
		if err := strictly(in.Args.Raw, into); err != nil {
			return fmt.Errorf("args of %s: %w", in.Name, err)
		}
		return nil
	}
	switch in.Name {
	case "NodeAffinity":
		var args schedulerv1.NodeAffinityArgs
		if err := decode(&args); err != nil {
			return err
		}
		out.AddedAffinity = args.AddedAffinity
	case "NodeResourcesFit":
		var args schedulerv1.NodeResourcesFitArgs
		if err := decode(&args); err != nil {
			return err
		}
		return fit(&args, out)
	case "DefaultPreemption":
		var args schedulerv1.DefaultPreemptionArgs
		return decode(&args) // all candidates are looked at, whatever the sample
	case "InterPodAffinity":
		var args schedulerv1.InterPodAffinityArgs
		if err := decode(&args); err != nil {
			return err
		}
		if w := args.HardPodAffinityWeight; w != nil && *w != 1 {
			return fmt.Errorf("args of %s: hardPodAffinityWeight: only 1 is supported", in.Name)
		}
		if args.IgnorePreferredTermsOfExistingPods {
			return fmt.Errorf("args of %s: ignorePreferredTermsOfExistingPods is not supported", in.Name)
		}
	case "PodTopologySpread":
		var args schedulerv1.PodTopologySpreadArgs
		if err := decode(&args); err != nil {
			return err
		}
		if len(args.DefaultConstraints) > 0 || args.DefaultingType == schedulerv1.ListDefaulting {
			return fmt.Errorf("args of %s: defaultConstraints are not supported; the system's are used", in.Name)
		}
	case "NodeResourcesBalancedAllocation":
		var args schedulerv1.NodeResourcesBalancedAllocationArgs
		if err := decode(&args); err != nil {
			return err
		}
		if len(args.Resources) > 0 && !defaultResources(args.Resources) {
			return fmt.Errorf("args of %s: resources: only cpu and memory are supported", in.Name)
		}
	case "VolumeBinding":
		var args schedulerv1.VolumeBindingArgs
		if err := decode(&args); err != nil {
			return err
		}
		if t := args.BindTimeoutSeconds; t != nil && *t != 600 || len(args.Shape) > 0 {
			return fmt.Errorf("args of %s: bindTimeoutSeconds is 600 and shape is not supported", in.Name)
		}
	default:
		return fmt.Errorf("name: %q has no arguments", in.Name)
	}
	return nil
}

func defaultResources(in []schedulerv1.ResourceSpec) bool {
	seen := map[string]bool{}
	for _, r := range in {
		if r.Weight != 1 && r.Weight != 0 {
			return false
		}
		seen[r.Name] = true
	}
	return len(seen) == 2 && seen["cpu"] && seen["memory"]
}

func fit(args *schedulerv1.NodeResourcesFitArgs, out *scheduler.Profile) error {
	out.Fit.Ignored, out.Fit.IgnoredGroups = args.IgnoredResources, args.IgnoredResourceGroups
	s := args.ScoringStrategy
	if s == nil {
		return nil
	}
	switch s.Type {
	case "", schedulerv1.LeastAllocated:
	case schedulerv1.MostAllocated:
		out.Fit.MostAllocated = true
	default:
		return fmt.Errorf("args of NodeResourcesFit: scoringStrategy.type: %s is not supported; use LeastAllocated or MostAllocated", s.Type)
	}
	if defaultResources(s.Resources) {
		return nil
	}
	for _, r := range s.Resources {
		out.Fit.Resources = append(out.Fit.Resources, noderesources.Weighted{Name: corev1.ResourceName(r.Name), Weight: orElse(r.Weight, 1)})
	}
	return nil
}
