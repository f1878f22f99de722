//go:build !kube1.37

package scheduler

import (
	"k8s.io/client-go/informers"
	corev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/scheduler"
)

// newInformers has what kube-scheduler of Kubernetes before 1.37 watches.
func newInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return scheduler.NewInformerFactory(client, 0)
}

// podInformer is what an informer factory has of pods.
type podInformer = corev1.PodInformer
