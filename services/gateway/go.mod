module github.com/xmtp-selfhosted/backend/services/gateway

go 1.26.0

require (
	github.com/xmtp-selfhosted/backend/pkg v0.0.0
	github.com/xmtp-selfhosted/backend/proto v0.0.0
)

replace github.com/xmtp-selfhosted/backend/proto => ../../proto

replace github.com/xmtp-selfhosted/backend/pkg => ../../pkg
