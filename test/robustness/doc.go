// Package robustness holds tests of several API servers on one store while things fail:
// watches break and lag, writes end without anybody knowing how, servers are killed and
// started again, members of etcd stop. Histories of what clients saw are checked, not states.
//
// The tests run on the store in memory behind a faulty twin; those that need upstream's
// programs (make twins) say so when they are not built.
package robustness
