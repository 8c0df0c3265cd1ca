# What `cmake --install` and the Debian packages contain, as two components: `flotilla`, the programs with their
# systemd units, and `client`, the gRPC client for C++ programs (find_package(FlotillaClient); docs/packages.md).
#
# The launcher finds the other programs beside itself, so all are in libexec/flotilla; bin/flotilla is a link.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS ${FLOTILLA_PROGRAMS}
  RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/flotilla COMPONENT flotilla)

# Files that name where others are: made when they are installed, because only then the prefix is known.
configure_file(${CMAKE_CURRENT_LIST_DIR}/install_configured.cmake.in ${CMAKE_BINARY_DIR}/install_configured.cmake @ONLY)
install(SCRIPT ${CMAKE_BINARY_DIR}/install_configured.cmake COMPONENT flotilla)

# Licences: ours, and those of what is compiled into the programs. Libraries that they load have packages of their own.
set(doc ${CMAKE_INSTALL_DATADIR}/doc)
install(FILES LICENSE DESTINATION ${doc}/flotilla RENAME copyright COMPONENT flotilla)
set(xgrammar ${CMAKE_BINARY_DIR}/xgrammar/xgrammar-${XGRAMMAR_VERSION})
install(FILES ${xgrammar}/LICENSE ${xgrammar}/NOTICE DESTINATION ${doc}/flotilla/licences/xgrammar COMPONENT flotilla)
install(FILES ${xgrammar}/3rdparty/picojson/picojson.h DESTINATION ${doc}/flotilla/licences/picojson
  COMPONENT flotilla)
install(FILES ${xgrammar}/3rdparty/dlpack/LICENSE DESTINATION ${doc}/flotilla/licences/dlpack COMPONENT flotilla)
foreach(package libcli11-dev libspdlog-dev cppzmq-dev)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION ${doc}/flotilla/licences/${package}
    COMPONENT flotilla OPTIONAL)
endforeach()

# The client: what is generated from inference.proto, as one library, and inference.proto for other languages.
install(TARGETS flotilla_client EXPORT FlotillaClient ARCHIVE COMPONENT client INCLUDES DESTINATION include)
install(FILES ${CMAKE_BINARY_DIR}/proto/flotilla/v1/inference.pb.h
  ${CMAKE_BINARY_DIR}/proto/flotilla/v1/inference.grpc.pb.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flotilla/v1 COMPONENT client)
install(FILES proto/flotilla/v1/inference.proto
  DESTINATION ${CMAKE_INSTALL_DATADIR}/flotilla/proto/flotilla/v1 COMPONENT client)
install(FILES LICENSE DESTINATION ${doc}/libflotilla-client-dev RENAME copyright COMPONENT client)
install(DIRECTORY examples/client DESTINATION ${doc}/libflotilla-client-dev/examples COMPONENT client)
set(config ${CMAKE_INSTALL_LIBDIR}/cmake/FlotillaClient)
install(EXPORT FlotillaClient FILE FlotillaClientTargets.cmake NAMESPACE flotilla:: DESTINATION ${config}
  COMPONENT client)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/FlotillaClientConfig.cmake.in
  ${CMAKE_BINARY_DIR}/FlotillaClientConfig.cmake INSTALL_DESTINATION ${config})
# The programs speak with clients of neighbouring versions; the generated code need not be compatible.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/FlotillaClientConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/FlotillaClientConfig.cmake ${CMAKE_BINARY_DIR}/FlotillaClientConfigVersion.cmake
  DESTINATION ${config} COMPONENT client)

# Debian packages by CPack: flotilla and libflotilla-client-dev. What they depend on, with versions, is what
# dpkg-shlibdeps finds in the programs.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGE_NAME flotilla)
set(CPACK_PACKAGE_VENDOR Flotilla)
set(CPACK_PACKAGE_CONTACT "Flotilla maintainers <maintainers@flotilla.example.com>")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_SET_DESTDIR ON)  # /etc is outside of the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL flotilla client)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)  # twice the size of xz (7 MB), half a minute sooner
set(CPACK_DEBIAN_FLOTILLA_PACKAGE_NAME flotilla)
set(CPACK_DEBIAN_FLOTILLA_PACKAGE_SECTION net)
set(CPACK_DEBIAN_FLOTILLA_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_FLOTILLA_DESCRIPTION "Serves large language models from a cluster of small processes
A router with OpenAI's HTTP API and gRPC, and engines that run the model on this machine's cores: the command
flotilla, and the systemd units flotilla-router and flotilla-engine, which are not started by themselves.")
set(control ${CMAKE_SOURCE_DIR}/deploy/package)
set(CPACK_DEBIAN_FLOTILLA_PACKAGE_CONTROL_EXTRA ${control}/conffiles ${control}/postinst ${control}/prerm
  ${control}/postrm)
set(CPACK_DEBIAN_FLOTILLA_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME libflotilla-client-dev)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_CLIENT_PACKAGE_DEPENDS
  "libgrpc++-dev (>= 1.51), libprotobuf-dev (>= 3.21), protobuf-compiler-grpc (>= 1.51)")
set(CPACK_COMPONENT_CLIENT_DESCRIPTION "Client library for Flotilla's gRPC API
Headers, a static library and CMake's find_package(FlotillaClient); inference.proto for other languages.")
include(CPack)
