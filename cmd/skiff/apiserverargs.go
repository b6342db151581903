package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/skiff-k8s/skiff/cluster"
)

// extraFlags are the flags of skiff kube-apiserver that the API server of skiff up may be given
// too; what the others say is decided by skiff up.
var extraFlags = strings.Fields(`anonymous-auth token-auth-file api-audiences service-account-issuer service-account-key-file
	service-account-jwks-uri authorization-mode enable-admission-plugins disable-admission-plugins allow-privileged
	max-requests-inflight max-mutating-requests-inflight enable-priority-and-fairness profiling
	tls-min-version tls-cipher-suites event-ttl`)

// extraFlag tells whether a flag may be given.
func extraFlag(name string) bool {
	return slices.Contains(extraFlags, name) || slices.Contains(balanceNames, name) || strings.HasPrefix(name, "audit-")
}

// extraArgs changes the configuration of the API server of skiff up as its extra arguments say.
// Errors name the flag.
func extraArgs(c *cluster.APIServerConfig, args map[string][]string) error {
	if len(args) == 0 {
		return nil
	}
	log := c.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	known := kubeAPIServerCommand().Flags()
	var f apiServerFlags
	flags := pflag.NewFlagSet("apiServer.extraArgs", pflag.ContinueOnError)
	f.bind(flags)
	for _, name := range slices.Sorted(maps.Keys(args)) {
		k := known.Lookup(name)
		if k == nil {
			return fmt.Errorf("--%s: skiff kube-apiserver has no such flag", name)
		}
		to := flags
		switch _, ignored := k.Value.(*ignored); {
		case ignored:
			to = known
		case !extraFlag(name):
			return fmt.Errorf("--%s: skiff up sets it itself", name)
		}
		for _, v := range args[name] {
			if err := to.Set(name, v); err != nil {
				return fmt.Errorf("--%s=%s: %w", name, v, err)
			}
		}
	}
	if err := settle(known, log); err != nil {
		return err
	}
	return f.overlay(flags.Changed, c, log)
}

// overlay takes from the flags what was given.
func (f *apiServerFlags) overlay(given func(string) bool, c *cluster.APIServerConfig, log *slog.Logger) error {
	if err := f.refuse(); err != nil {
		return err
	}
	var err error
	if given("anonymous-auth") {
		c.Anonymous = f.anonymous
	}
	if given("token-auth-file") {
		if c.Tokens, err = tokenFile("token-auth-file", f.tokens); err != nil {
			return err
		}
	}
	if given("api-audiences") {
		c.Audiences = f.audiences
	}
	if given("service-account-issuer") { // tokens that are in use stay good
		c.FormerIssuers = append(slices.Clone(f.issuers[1:]), c.Issuer)
		c.Issuer = f.issuers[0]
	}
	if given("service-account-key-file") {
		if c.TokenKeys, err = publicKeys("service-account-key-file", f.tokenKeys); err != nil {
			return err
		}
	}
	if given("service-account-jwks-uri") {
		c.JWKSURI = f.jwksURI
	}
	if given("max-requests-inflight") {
		c.MaxInFlight = f.inFlight
	}
	if given("max-mutating-requests-inflight") {
		c.MaxMutating = f.mutate
	}
	if given("enable-priority-and-fairness") {
		c.WithoutFairness = !f.fair
	}
	if given("profiling") {
		c.Profiling = f.profiling
	}
	if given("event-ttl") {
		if f.storage.eventTTL <= 0 {
			return fmt.Errorf("--event-ttl=%s: want more than 0s", f.storage.eventTTL)
		}
		c.Store.EventTTL = f.storage.eventTTL
	}
	if slices.ContainsFunc(balanceNames, given) {
		if err := f.balance.set(c); err != nil {
			return err
		}
	}
	if given("tls-min-version") || given("tls-cipher-suites") {
		switch f.serving.minVersion {
		case "VersionTLS12":
			c.Serving.MinVersion = tls.VersionTLS12
		case "VersionTLS13":
			c.Serving.MinVersion = tls.VersionTLS13
		default:
			return oneOf("tls-min-version", f.serving.minVersion, "VersionTLS12", "VersionTLS13")
		}
		if c.Serving.CipherSuites, err = cipherSuites(f.serving.ciphers); err != nil {
			return err
		}
	}
	auditor, err := f.audit.New(log.With("component", "audit"))
	if err != nil {
		return err
	}
	if auditor != nil {
		c.Audit = auditor
	}
	return nil
}
