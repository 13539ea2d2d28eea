module github.com/xmtp-selfhosted/backend/cmd

go 1.26.0

require (
	github.com/xmtp-selfhosted/backend/pkg v0.0.0
	github.com/xmtp-selfhosted/backend/proto v0.0.0
	github.com/xmtp-selfhosted/backend/services/gateway v0.0.0
	github.com/xmtp-selfhosted/backend/services/publisher v0.0.0
	github.com/xmtp-selfhosted/backend/services/reader v0.0.0
	github.com/xmtp-selfhosted/backend/services/streamer v0.0.0
)

replace github.com/xmtp-selfhosted/backend/proto => ../proto

replace github.com/xmtp-selfhosted/backend/pkg => ../pkg

replace github.com/xmtp-selfhosted/backend/services/publisher => ../services/publisher

replace github.com/xmtp-selfhosted/backend/services/reader => ../services/reader

replace github.com/xmtp-selfhosted/backend/services/streamer => ../services/streamer

replace github.com/xmtp-selfhosted/backend/services/gateway => ../services/gateway
