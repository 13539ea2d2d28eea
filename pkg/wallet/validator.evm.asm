; Init code of the signature validator: runs in one eth_call without `to`, so
; nothing has to be deployed. It never reverts. It returns one byte:
;
;   00  invalid
;   01  valid by ERC-1271
;   02  no code at the signer and the signature is not wrapped: the caller
;       checks the signature of a plain key itself
;
; The arguments follow the code. Copied to memory they are
;
;   00  signer                  a word
;   20  factory                 a word, 0 when not wrapped
;   40  wrapped                 a word, 0 or 1
;   60  F                       a word, length of the factory calldata
;   80  S                       a word, length of the check calldata
;   a0  factory calldata        F bytes
;   a0+F  check calldata        S bytes: isValidSignature(hash, signature)
;
; No opcode is newer than Constantinople (SHL), so that old chains run it too.
;
; One instruction or label a line. `name:` is a JUMPDEST, `@name` its offset,
; and `@end` the length of the code. The comment shows the stack after the
; instruction, its top on the right.

; copy the arguments to memory
    PUSH1 @end          ; end
    CODESIZE            ; end codesize
    SUB                 ; size
    PUSH1 @end          ; size end
    PUSH1 0x00          ; size end 0
    CODECOPY            ;

; a signer with code is asked directly, wrapped or not
    PUSH1 0x00          ; 0
    MLOAD               ; signer
    EXTCODESIZE         ; codesize(signer)
    PUSH1 @check        ; codesize(signer) check
    JUMPI               ;

; no code: with a wrapper, deploy first
    PUSH1 0x40          ; 40
    MLOAD               ; wrapped
    PUSH1 @deploy       ; wrapped deploy
    JUMPI               ;

; no code and no wrapper: a plain key
    PUSH1 0x02          ; 2
    PUSH1 @answer       ; 2 answer
    JUMP                ; 2

; call the factory; it has to leave code at the signer
deploy:
    PUSH1 0x00          ; 0                             length of the result
    PUSH1 0x00          ; 0 0                           place of the result
    PUSH1 0x60          ; 0 0 60
    MLOAD               ; 0 0 F
    PUSH1 0xa0          ; 0 0 F a0
    PUSH1 0x00          ; 0 0 F a0 0                    value
    PUSH1 0x20          ; 0 0 F a0 0 20
    MLOAD               ; 0 0 F a0 0 factory
    GAS                 ; 0 0 F a0 0 factory gas
    CALL                ; success
    ISZERO              ; failed
    PUSH1 @invalid      ; failed invalid
    JUMPI               ;
    PUSH1 0x00          ; 0
    MLOAD               ; signer
    EXTCODESIZE         ; codesize(signer)
    ISZERO              ; missing
    PUSH1 @invalid      ; missing invalid
    JUMPI               ;

; ask the signer by ERC-1271; the first word of its answer goes to 00
check:
    PUSH1 0x20          ; 20                            length of the result
    PUSH1 0x00          ; 20 0                          place of the result
    PUSH1 0x80          ; 20 0 80
    MLOAD               ; 20 0 S
    PUSH1 0x60          ; 20 0 S 60
    MLOAD               ; 20 0 S F
    PUSH1 0xa0          ; 20 0 S F a0
    ADD                 ; 20 0 S a0+F
    PUSH1 0x00          ; 20 0 S a0+F 0
    MLOAD               ; 20 0 S a0+F signer
    GAS                 ; 20 0 S a0+F signer gas
    STATICCALL          ; success
    ISZERO              ; failed
    PUSH1 @invalid      ; failed invalid
    JUMPI               ;
    PUSH1 0x20          ; 20
    RETURNDATASIZE      ; 20 returned
    LT                  ; returned<20
    PUSH1 @invalid      ; returned<20 invalid
    JUMPI               ;

; valid only for the magic value, left aligned, with zeros behind it
    PUSH1 0x00          ; 0
    MLOAD               ; word
    PUSH4 0x1626ba7e    ; word magic
    PUSH1 0xe0          ; word magic e0
    SHL                 ; word magic<<e0
    EQ                  ; 0 or 1
    PUSH1 @answer       ; verdict answer
    JUMP                ; verdict

invalid:
    PUSH1 0x00          ; 0

; return the top of the stack as one byte
answer:
    PUSH1 0x00          ; verdict 0
    MSTORE8             ;
    PUSH1 0x01          ; 1
    PUSH1 0x00          ; 1 0
    RETURN              ;
