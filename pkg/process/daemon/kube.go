package daemon

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Kube configures access to the API server.
type Kube struct {
	Config string // kubeconfig file; empty: the pod's service account
	QPS    float32
	Burst  int
}

// AddFlags adds the flags for the configuration. The present values are the defaults.
func (k *Kube) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&k.Config, "kubeconfig", k.Config, "`file` with access to the API server; empty: the pod's service account")
	f.Float32Var(&k.QPS, "kube-api-qps", k.QPS, "requests per second to the API server")
	f.IntVar(&k.Burst, "kube-api-burst", k.Burst, "requests to the API server at once")
}

// Validate rejects rates that allow no requests.
func (k Kube) Validate() error {
	if !(k.QPS > 0) || k.Burst <= 0 { // also rejects NaN
		return errors.New("--kube-api-qps and --kube-api-burst: want more than 0")
	}
	return nil
}

func (k Kube) client(userAgent string) (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", k.Config)
	if err != nil {
		return nil, fmt.Errorf("find the API server (set --kubeconfig outside of a cluster): %w", err)
	}
	config.QPS, config.Burst = k.QPS, k.Burst
	config.UserAgent = userAgent
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for %s: %w", config.Host, err)
	}
	return client, nil
}
