package audit

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"
)

// Options are the flags of the API server about auditing, under upstream's names and
// with upstream's defaults.
type Options struct {
	PolicyFile string
	Log        LogConfig
	Webhook    WebhookConfig
	// Only one version is known; the flags are there for command lines that name it.
	logVersion, webhookVersion string
}

// NewOptions are the defaults: no auditing.
func NewOptions() *Options {
	truncate := TruncateConfig{MaxBatchSize: defaultMaxBatchBytes, MaxEventSize: defaultMaxEventBytes}
	return &Options{
		Log: LogConfig{Format: "json", MaxSize: 100, MaxAge: 366, MaxBackups: 100, Mode: Blocking, Truncate: truncate,
			Batch: BatchConfig{BufferSize: 10_000, MaxBatchSize: 400, ThrottleQPS: 10, ThrottleBurst: 15}},
		Webhook: WebhookConfig{InitialBackoff: 10 * time.Second, Mode: Batch, Truncate: truncate,
			Batch: BatchConfig{BufferSize: 10_000, MaxBatchSize: 400, MaxWait: 30 * time.Second, ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15}},
		logVersion: version, webhookVersion: version,
	}
}

const version = "audit.k8s.io/v1"

// AddFlags adds all flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.AddMainFlags(fs)
	fs.StringVar(&o.Log.Format, "audit-log-format", o.Log.Format, "form of events: json, or legacy for a line of text")
	fs.StringVar(&o.logVersion, "audit-log-version", o.logVersion, "API group and version of events in the log")
	fs.IntVar(&o.Log.MaxSize, "audit-log-maxsize", o.Log.MaxSize, "megabytes at which the audit log is put aside and a new one begun; 0: never")
	fs.IntVar(&o.Log.MaxAge, "audit-log-maxage", o.Log.MaxAge, "days that audit logs put aside are kept; 0: for ever")
	fs.IntVar(&o.Log.MaxBackups, "audit-log-maxbackup", o.Log.MaxBackups, "how many audit logs put aside are kept; 0: all")
	fs.BoolVar(&o.Log.Compress, "audit-log-compress", o.Log.Compress, "gzip audit logs that are put aside")
	fs.StringVar(&o.Webhook.ConfigFile, "audit-webhook-config-file", o.Webhook.ConfigFile, "kubeconfig of the server that audit events are sent to")
	fs.StringVar(&o.webhookVersion, "audit-webhook-version", o.webhookVersion, "API group and version of events that are sent")
	fs.DurationVar(&o.Webhook.InitialBackoff, "audit-webhook-initial-backoff", o.Webhook.InitialBackoff, "how long to wait before what failed is sent again")
	for _, b := range []struct {
		name     string
		mode     *Mode
		batch    *BatchConfig
		truncate *TruncateConfig
	}{{"log", &o.Log.Mode, &o.Log.Batch, &o.Log.Truncate}, {"webhook", &o.Webhook.Mode, &o.Webhook.Batch, &o.Webhook.Truncate}} {
		p := "audit-" + b.name + "-"
		fs.StringVar((*string)(b.mode), p+"mode", string(*b.mode), "batch, blocking or blocking-strict: keep events later, before the request goes on, or refuse it where that fails")
		fs.IntVar(&b.batch.BufferSize, p+"batch-buffer-size", b.batch.BufferSize, "events that may wait in batch mode; those beyond are lost")
		fs.IntVar(&b.batch.MaxBatchSize, p+"batch-max-size", b.batch.MaxBatchSize, "events in a batch")
		fs.DurationVar(&b.batch.MaxWait, p+"batch-max-wait", b.batch.MaxWait, "how long a batch waits to be full")
		fs.BoolVar(&b.batch.ThrottleEnable, p+"batch-throttle-enable", b.batch.ThrottleEnable, "bound the rate of batches")
		fs.Float32Var(&b.batch.ThrottleQPS, p+"batch-throttle-qps", b.batch.ThrottleQPS, "batches per second")
		fs.IntVar(&b.batch.ThrottleBurst, p+"batch-throttle-burst", b.batch.ThrottleBurst, "batches at once after a pause")
		fs.BoolVar(&b.truncate.Enabled, p+"truncate-enabled", b.truncate.Enabled, "bound the size of events and batches")
		fs.Int64Var(&b.truncate.MaxBatchSize, p+"truncate-max-batch-size", b.truncate.MaxBatchSize, "bytes in a batch")
		fs.Int64Var(&b.truncate.MaxEventSize, p+"truncate-max-event-size", b.truncate.MaxEventSize, "bytes in an event; a larger one loses its objects, or is lost")
	}
}

// AddMainFlags adds the flags that a whole cluster's command has: the policy and the log.
func (o *Options) AddMainFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.PolicyFile, "audit-policy-file", o.PolicyFile, "audit.k8s.io/v1 Policy: which requests are recorded, and how much of them")
	fs.StringVar(&o.Log.Path, "audit-log-path", o.Log.Path, "file that audit events are written to, - for standard output")
}

// New builds the Auditor that the flags describe; nil where they ask for none.
func (o *Options) New(log *slog.Logger) (*Auditor, error) {
	for flag, v := range map[string]string{"audit-log-version": o.logVersion, "audit-webhook-version": o.webhookVersion} {
		if v != version && v != "" {
			return nil, fmt.Errorf("--%s %q: only %s is known", flag, v, version)
		}
	}
	if o.PolicyFile == "" {
		if o.Log.Path != "" || o.Webhook.ConfigFile != "" {
			log.Warn("nothing is audited: --audit-policy-file is not set")
		}
		return nil, nil
	}
	p, err := LoadPolicy(o.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("--audit-policy-file: %w", err)
	}
	c := Config{Policy: p, Logger: log}
	if o.Log.Path != "" {
		c.Log = &o.Log
	}
	if o.Webhook.ConfigFile != "" {
		c.Webhook = &o.Webhook
	}
	if c.Log == nil && c.Webhook == nil {
		log.Warn("nothing is audited: neither --audit-log-path nor --audit-webhook-config-file is set")
		return nil, nil
	}
	return New(c)
}
