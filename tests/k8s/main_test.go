// Package k8s installs the chart into a real Kubernetes control plane that runs
// on this machine: etcd, the API server, the controller manager and the
// scheduler, built from their Go modules into this test's own binary, and helm
// and kubectl as their users run them. There are no containers: kubelet_test.go
// plays the nodes.
package k8s

import (
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// TestMain is the program that its name says: one binary holds all of them, since
// each takes long to link.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllers.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kubectl":
		kubectlutil.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
		os.Exit(0)
	}
	os.Exit(m.Run())
}
