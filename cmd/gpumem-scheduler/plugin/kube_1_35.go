//go:build kube1.35

package plugin

import (
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// maxScore is the highest score of a plugin in Kubernetes 1.35.
const maxScore = fwk.MaxNodeScore

// newEvaluator is as Kubernetes 1.35 makes one.
func newEvaluator(h fwk.Handle, e *evictor, features feature.Features) *preemption.Evaluator {
	return preemption.NewEvaluator(Name, h, e, features.EnableAsyncPreemption)
}
