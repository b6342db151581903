// Package audit compares the audit events of skiff's API server with those that upstream's
// kube-apiserver 1.37.2 wrote for the same requests (testdata/upstream.jsonl; ./record
// TWINS writes it anew).
//
// Owns: the requests and what of an event may differ. Must not: know how events are made.
package audit
