//go:build !kube1.35

package plugin

import (
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// maxScore is the highest score of a plugin from Kubernetes 1.36 on.
const maxScore = fwk.MaxScore

// newEvaluator is as Kubernetes makes one from 1.36 on.
func newEvaluator(h fwk.Handle, e *evictor, _ feature.Features) *preemption.Evaluator {
	return preemption.NewEvaluator(Name, h, e, e.Executor)
}
