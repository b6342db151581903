package main

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/skiff-k8s/skiff/kubelet"
	"github.com/skiff-k8s/skiff/kubelet/images"
	"github.com/skiff-k8s/skiff/kubelet/pods"
)

// kubeletPolicies are flags about what is kept, pulled and run without the API.
type kubeletPolicies struct {
	manifestURL         string
	manifestHeader      map[string]string
	manifestHeaders     map[string][]string // of the file
	imageHigh, imageLow int32
	imageMinAge         time.Duration
	imageMaxAge         time.Duration
	deadPer, deadMax    int32
	deadMinAge          time.Duration
	serialPulls         bool
	maxPulls            int32
}

func (f *kubeletPolicies) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.manifestURL, "manifest-url", "", "URL of static pods, a Pod or a PodList")
	flags.StringToStringVar(&f.manifestHeader, "manifest-url-header", nil, "headers of requests to --manifest-url: name=value")
	flags.Int32Var(&f.imageHigh, "image-gc-high-threshold", 85, "per cent of the images' disk in use at which unused images go; 100: never")
	flags.Int32Var(&f.imageLow, "image-gc-low-threshold", 80, "per cent that they go down to")
	flags.DurationVar(&f.imageMinAge, "minimum-image-ttl-duration", 2*time.Minute, "least age of an image that goes")
	flags.Int32Var(&f.deadPer, "maximum-dead-containers-per-container", 1, "runs of a container that are kept before the latest")
	flags.Int32Var(&f.deadMax, "maximum-dead-containers", -1, "ended containers that are kept on the node, the latest run of each apart; -1: no limit")
	flags.DurationVar(&f.deadMinAge, "minimum-container-ttl-duration", 0, "least age of an ended container that goes")
	flags.BoolVar(&f.serialPulls, "serialize-image-pulls", false, "one image is pulled at a time; unlike upstream's, off unless it is asked for")
}

// read takes over what a configuration file says.
func (f *kubeletPolicies) read(file *kubeletv1beta1.KubeletConfiguration, take func(flag string, set bool, apply func())) {
	take("manifest-url", file.StaticPodURL != "", func() { f.manifestURL = file.StaticPodURL })
	take("manifest-url-header", len(file.StaticPodURLHeader) > 0, func() { f.manifestHeaders = file.StaticPodURLHeader })
	take("image-gc-high-threshold", file.ImageGCHighThresholdPercent != nil, func() { f.imageHigh = *file.ImageGCHighThresholdPercent })
	take("image-gc-low-threshold", file.ImageGCLowThresholdPercent != nil, func() { f.imageLow = *file.ImageGCLowThresholdPercent })
	take("minimum-image-ttl-duration", file.ImageMinimumGCAge.Duration != 0, func() { f.imageMinAge = file.ImageMinimumGCAge.Duration })
	take("serialize-image-pulls", file.SerializeImagePulls != nil, func() { f.serialPulls = *file.SerializeImagePulls })
	f.imageMaxAge = file.ImageMaximumGCAge.Duration
	if file.MaxParallelImagePulls != nil {
		f.maxPulls = *file.MaxParallelImagePulls
	}
}

func (f *kubeletPolicies) apply(c *kubelet.Config) error {
	if f.manifestURL != "" {
		u, err := url.Parse(f.manifestURL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("--manifest-url=%s is no http or https URL", f.manifestURL)
		}
	}
	for name, percent := range map[string]int32{"image-gc-high-threshold": f.imageHigh, "image-gc-low-threshold": f.imageLow} {
		if percent < 0 || percent > 100 {
			return fmt.Errorf("--%s=%d is no percentage", name, percent)
		}
	}
	if f.serialPulls && f.maxPulls > 1 {
		return fmt.Errorf("maxParallelImagePulls: %d and serializeImagePulls: true exclude each other", f.maxPulls)
	}
	c.ManifestURL, c.ManifestURLHeader = f.manifestURL, http.Header{}
	for k, v := range f.manifestHeader {
		c.ManifestURLHeader.Add(k, v)
	}
	for k, v := range f.manifestHeaders {
		c.ManifestURLHeader[http.CanonicalHeaderKey(k)] = v
	}
	c.MaxParallelPulls = int(f.maxPulls)
	if f.serialPulls {
		c.MaxParallelPulls = 1
	}
	c.ImageGC = images.Policy{HighPercent: uint64(f.imageHigh), LowPercent: uint64(f.imageLow), MinAge: f.imageMinAge, MaxAge: f.imageMaxAge}
	per := int(f.deadPer)
	c.DeadContainers = pods.DeadPolicy{PerContainer: &per, Max: max(int(f.deadMax), 0), MinAge: f.deadMinAge}
	for _, err := range []error{c.ImageGC.Check(), c.DeadContainers.Check()} {
		if err != nil {
			return err
		}
	}
	return nil
}
