// Package podfit answers whether a pod fits a node, and how much it takes, from
// the two objects alone: taints, node affinity, host ports, resources, QoS.
//
// The API server, scheduler, kubelet and controllers share these answers so
// that they never disagree. Owns: the published scheduling rules of pod and node
// specs. Must not: look at other pods, keep state, or mutate its arguments.
package podfit
