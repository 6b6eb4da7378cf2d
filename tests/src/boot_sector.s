# A guest of one sector. It says its name on the first serial port, and what the disk it was loaded from adds up to; then it
# hands the machine to the next disk, as a firmware would. Disks behind each other are so booted by one machine.
#
# boot_sector.rs assembles it, writes the fields at its end, and knows the sums.
        .code16
        .intel_syntax noprefix
        .set    BUFFER, 0x1000          # segment of 32 KiB for the disk's content

        xor     ax, ax
        mov     ds, ax
        mov     es, ax
        mov     ss, ax
        mov     sp, 0x7c00
        cld
        mov     si, 0x7c00              # out of the way of the next one's sector
        mov     di, 0x600
        mov     cx, 256
        rep movsw
        jmp     0:moved
moved:  mov     [drive], dl

        mov     si, offset name
        call    print
        xor     ebx, ebx
more:   mov     si, offset packet
        call    read
        jc      failed
        push    ds
        mov     ax, BUFFER
        mov     ds, ax
        xor     si, si
        mov     cx, 8192
each:   lodsd
        imul    ebx, ebx, 31
        add     ebx, eax
        loop    each
        pop     ds
        movzx   eax, word ptr [count]
        add     [sector], eax
        dec     dword ptr [pieces]
        jnz     more

        mov     cx, 8                   # hexadecimal digits
digit:  rol     ebx, 4
        mov     al, bl
        and     al, 15
        add     al, '0'
        cmp     al, '9'
        jbe     shown
        add     al, 'a' - '9' - 1
shown:  call    put
        loop    digit
        mov     si, offset line
        call    print

        mov     dl, [next]
        test    dl, dl
        jnz     known
        mov     dl, [drive]
        inc     dx
known:  mov     [drive], dl
        mov     si, offset first
        call    read
        mov     dl, [drive]
        jc      over
        cmp     word ptr [0x7dfe], 0xaa55
        jne     over
        jmp     0:0x7c00
over:   mov     si, offset end
        call    print
halt:   hlt
        jmp     halt
failed: mov     si, offset unread
        call    print
        jmp     halt

read:   mov     dl, [drive]             # what the packet at SI says
        mov     ah, 0x42
        int     0x13
        ret

print:  lodsb                           # the text at SI, up to its zero
        test    al, al
        jz      printed
        call    put
        jmp     print
printed: ret

put:    push    ax
        mov     dx, 0x3fd
full:   in      al, dx
        test    al, 0x20
        jz      full
        pop     ax
        mov     dx, 0x3f8
        out     dx, al
        ret

line:   .asciz  "\r\n"
end:    .asciz  "no more disks\r\n"
unread: .asciz  "cannot be read\r\n"
drive:  .byte   0
first:  .word   16, 1, 0x7c00, 0        # one sector, to where a firmware puts it
        .quad   0
packet: .word   16                      # as many as the buffer holds
count:  .word   64
        .word   0, BUFFER
sector: .quad   0

        .org    0x1d0
pieces: .long   0                       # of 32 KiB each
next:   .byte   0                       # the next drive, if it is not the following number
name:   .fill   41, 1, 0
        .word   0xaa55
