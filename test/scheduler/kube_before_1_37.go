//go:build !kube1.37

package scheduler

import (
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/scheduler"
)

// newInformers has what kube-scheduler of Kubernetes before 1.37 watches.
func newInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return scheduler.NewInformerFactory(client, 0)
}
